# expect: SS205 line 11
import math

import torch
from torch import nn


class Fourier(nn.Module):
    def __init__(self, dim, scale=10.0):
        super().__init__()
        self.B = torch.randn(dim, 8) * scale

    def forward(self, x):
        x = 2 * math.pi * x @ self.B
        return torch.cat([x.sin(), x.cos()], dim=-1)


model = nn.Sequential(Fourier(2), nn.Linear(16, 1))
print(model(torch.rand(3, 2)))
