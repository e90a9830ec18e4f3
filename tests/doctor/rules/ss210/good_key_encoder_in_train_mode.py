# expect: nothing
import copy

import torch
from torch import nn

query = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
key = copy.deepcopy(query).requires_grad_(False)
optimizer = torch.optim.SGD(query.parameters(), lr=0.1)
for _ in range(10):
    x = torch.randn(16, 4)
    with torch.no_grad():
        for kept, new in zip(key.parameters(), query.parameters(), strict=True):
            kept.lerp_(new, 0.01)
        target = key(x + 0.1 * torch.randn(16, 4))
    optimizer.zero_grad()
    (query(x) - target).pow(2).mean().backward()
    optimizer.step()
