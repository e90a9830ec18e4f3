# expect: nothing
import torch
from torch import nn

stem, head = nn.Linear(4, 8), nn.Linear(8, 1)
layers = [head, stem]
groups = []
for i, layer in enumerate(layers):
    groups.append({"params": layer.parameters(), "lr": 0.1 * 0.5**i})
optimizer = torch.optim.SGD(groups)
for _ in range(3):
    optimizer.zero_grad()
    head(stem(torch.randn(8, 4)).relu()).pow(2).mean().backward()
    optimizer.step()
