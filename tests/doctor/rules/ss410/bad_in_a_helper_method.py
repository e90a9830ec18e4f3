# expect: SS410 line 13
import torch
from torch.nn import Conv2d, Module
from torch.nn.functional import dropout2d, relu


class Features(Module):
    def __init__(self):
        super().__init__()
        self.conv = Conv2d(1, 2, 3)

    def extract(self, x):
        return dropout2d(relu(self.conv(x)), 0.25)

    def forward(self, x):
        return self.extract(x).mean((2, 3))


print(Features().eval()(torch.randn(2, 1, 8, 8)))
