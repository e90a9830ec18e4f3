# expect: SS214 line 22
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x)


net = Net()
net.to(dtype=torch.bfloat16)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-5)
for _ in range(12):
    x = torch.randn(8, 4).to(torch.bfloat16)
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
