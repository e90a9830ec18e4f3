# expect: SS507 line 17, SS507 line 18
import torch
from torch import nn


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 1)

    def forward(self, x):
        return torch.sigmoid(self.out(x))


discriminator, generator = Discriminator(), nn.Linear(3, 2)
fake = generator(torch.randn(8, 3))
loss = -torch.log(discriminator(torch.randn(8, 2))).mean()
loss = loss - torch.log(1 - discriminator(fake.detach())).mean()
loss.backward()
