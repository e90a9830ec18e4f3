# expect: nothing
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        layers = []
        for _ in range(depth):
            layers.append(nn.Linear(4, 4))
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


print(Net()(torch.randn(2, 4)))
