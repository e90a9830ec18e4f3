# expect: nothing; watch: SS202 line 11
import torch
from torch import nn


def train(net, optimizer):
    for _ in range(6):
        loss = nn.functional.cross_entropy(net(torch.randn(8, 4)), torch.randint(2, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10)).requires_grad_(False)
optimizer = torch.optim.SGD(net[2].parameters(), lr=0.1)
net[2] = nn.Linear(8, 2)
train(net, optimizer)
net.requires_grad_(True)
train(net, torch.optim.SGD(net.parameters(), lr=0.1))
