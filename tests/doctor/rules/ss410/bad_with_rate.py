# expect: SS410 line 13
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, rate=0.1):
        super().__init__()
        self.rate = rate
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x + nn.functional.dropout(self.linear(x), p=self.rate)


model = nn.Sequential(Block(), Block(0.2))
model.eval()
print(model(torch.randn(3, 4)))
