# expect: SS206 line 6
import torch


class Scale(torch.nn.Module):
    def __init__(self, factor=2.0):
        self.factor = factor

    def forward(self, x):
        return x * self.factor


print(Scale(3.0).factor)
