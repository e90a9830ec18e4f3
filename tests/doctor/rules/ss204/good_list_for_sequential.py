# expect: nothing
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = [nn.Linear(4, 8), nn.ReLU()]
        self.parts += [nn.Linear(8, 1)]
        self.net = nn.Sequential(*self.parts)

    def forward(self, x):
        return self.net(x)


print(Net()(torch.randn(2, 4)))
