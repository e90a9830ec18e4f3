# expect: SS410 line 12
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(nn.Dropout(0.3)(self.body(x)))


print(Net().eval()(torch.randn(3, 4)))
