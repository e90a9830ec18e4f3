# expect: SS507 line 13
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), nn.Softmax(-1))

    def entropy(self, state):
        p = self.net(state)
        return -(p * p.log()).sum(-1)


(-Policy().entropy(torch.randn(8, 4)).mean()).backward()
