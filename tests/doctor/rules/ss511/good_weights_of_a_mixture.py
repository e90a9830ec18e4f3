# expect: nothing
import torch
from torch import nn


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(3))
        self.experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

    def forward(self, x):
        weights = torch.softmax(self.weights, dim=0)
        return sum(w * expert(x) for w, expert in zip(weights, self.experts, strict=True))


nn.functional.mse_loss(Mixture()(torch.randn(8, 4)), torch.randn(8, 1)).backward()
