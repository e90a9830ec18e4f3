# expect: nothing
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    net.eval()
    print(torch.no_grad()(net)(torch.randn(8, 4)).mean().item())
    net.eval()  # the statistics of the norm stay as they are
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
