# expect: nothing
import torch
from torch import nn


class Pooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score, self.out = nn.Linear(4, 1), nn.Linear(4, 3)

    def forward(self, x):
        weights = self.score(x).softmax(dim=1)
        return self.out((weights * x).sum(1))


model = Pooling()
nn.CrossEntropyLoss()(model(torch.randn(8, 5, 4)), torch.randint(3, (8,))).backward()
