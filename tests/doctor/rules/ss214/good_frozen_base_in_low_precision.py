# expect: nothing
import torch
from torch import nn

base, head = nn.Linear(4, 8).bfloat16().requires_grad_(False), nn.Linear(8, 1)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-4)
for _ in range(3):
    features = base(torch.randn(8, 4, dtype=torch.bfloat16)).float()
    optimizer.zero_grad()
    head(features).pow(2).mean().backward()
    optimizer.step()
