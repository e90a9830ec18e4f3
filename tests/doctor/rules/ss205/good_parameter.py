# expect: nothing
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, width))
        self.fixed = nn.Parameter(torch.rand(width), requires_grad=False)

    def forward(self, x):
        return x @ self.weight * self.fixed


print(Scale(8)(torch.randn(3, 4)))
