# expect: nothing
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.activations = []
        for _ in range(depth):
            self.activations.append(nn.ReLU())
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for activation in self.activations:
            x = activation(x)
        return self.head(x)


print(Net()(torch.randn(2, 4)))
