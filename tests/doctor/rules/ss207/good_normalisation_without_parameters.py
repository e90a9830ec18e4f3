# expect: nothing
import torch
from torch import nn

norm = nn.LayerNorm(8, elementwise_affine=False)
model = nn.Sequential(nn.Linear(4, 8), norm, nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
