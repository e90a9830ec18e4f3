# expect: SS205 line 9
import torch
from torch import nn


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.offset = 0.01 * torch.randn(1)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(x + self.offset)


print(Shifted()(torch.randn(3, 4)))
