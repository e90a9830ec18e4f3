# expect: nothing
import torch
from torch import nn

model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = torch.zeros(())
for _ in range(12):
    labels = torch.randint(3, (8,))
    kept = labels.ne(0).float().sum()
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), labels, ignore_index=0)
    optimizer.zero_grad()
    (kept * loss).backward()
    optimizer.step()
    total = total + kept
