# expect: nothing
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer0 = nn.Linear(4, 4)
        self.layer1 = nn.Linear(4, 4)

    def forward(self, x):
        for index in range(2):
            x = getattr(self, f"layer{index}")(x)
        return x


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return x


class Child(Base):
    def forward(self, x):
        return self.head(x)


print(Net()(torch.randn(2, 4)), Child()(torch.randn(2, 4)))
