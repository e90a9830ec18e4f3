# expect: nothing
import torch
from torch import nn

body, head = nn.Linear(4, 8), nn.Linear(8, 1)
body.requires_grad_(False)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    head(body(torch.randn(8, 4)).relu()).pow(2).mean().backward()
    optimizer.step()
