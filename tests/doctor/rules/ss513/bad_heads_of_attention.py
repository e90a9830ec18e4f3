# expect: SS513 line 15
import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.size()
        heads = self.project(x).view(batch, length, 2, 4)
        b, n, h, d = heads.shape
        heads = heads.contiguous().reshape((b, h, n, d))
        return (heads.softmax(-1) * heads).sum((1, 3))


print(Mix()(torch.randn(4, 6, 8)).shape)
