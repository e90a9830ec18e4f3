# expect: SS204 line 18; watch: SS204 line 22
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + self.linear(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(4) for _ in range(2)]

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


print(Net()(torch.randn(2, 4)))
