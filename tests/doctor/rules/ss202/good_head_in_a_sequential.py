# expect: nothing
import torch
from torch import nn

body = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).requires_grad_(False)
model = nn.Sequential(body, nn.Linear(16, 4))
head = nn.Linear(16, 2)
model[1] = head
optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
for _ in range(5):
    x = torch.randn(64, 8)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
    optimizer.step()
