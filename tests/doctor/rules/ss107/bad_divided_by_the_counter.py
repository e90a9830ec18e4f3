# expect: SS107 line 11; watch: nothing
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
for index in range(16):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(3, (8,)))
    loss = loss / (index + 1)
    loss.backward()
    if (index + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
