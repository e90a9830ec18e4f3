# expect: SS204 line 18; watch: SS204 line 30
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.factor


class Net(nn.Module):
    def __init__(self, plan="LSRL"):
        super().__init__()
        self.layers = []
        for letter in plan:
            if letter == "L":
                self.layers.append(nn.Linear(4, 4))
            if letter == "S":
                self.layers.append(Scale())
            if letter == "R":
                self.layers.append(nn.ReLU())
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Net()
for _ in range(6):
    model(torch.randn(2, 4)).sum().backward()
