# expect: nothing
import torch
from torch import nn

model, head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1)
model.append(head)
optimizer = torch.optim.SGD(head.parameters(), lr=1e-2)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
