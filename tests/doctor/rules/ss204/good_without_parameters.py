# expect: nothing
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.activations = {"relu": nn.ReLU(), "tanh": nn.Tanh()}

    def forward(self, x, name="relu"):
        return self.activations[name](self.linear(x))


print(Net()(torch.randn(2, 4)))
