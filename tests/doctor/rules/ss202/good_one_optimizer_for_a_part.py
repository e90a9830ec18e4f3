# expect: nothing
import torch
from torch import nn

backbone, head = nn.Linear(4, 8), nn.Linear(8, 1)
model = nn.Sequential(backbone, nn.ReLU(), head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
