# expect: SS209 line 17
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x)


net = Net().eval()
with torch.no_grad():
    print(net.forward(torch.randn(3, 4)))
