# expect: nothing
import torch
from torch import nn

x = torch.randn(40, 4)
y = torch.zeros(len(x)).long()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    order = torch.randperm(len(x))
    x = x[order]
    for i in range(0, 40, 8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 8]), y[i : i + 8]).backward()
        optimizer.step()
