# expect: nothing
import torch
from torch import nn

torch.manual_seed(0)
model, accumulate = nn.Linear(4, 3), 4
optimizer = torch.optim.Adam(model.parameters())
for index in range(16):
    y = torch.randint(3, (8,))
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), y, reduction="sum")
    (loss / len(y) / accumulate).backward()
    if (index + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
