# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
groups = []
for i, layer in enumerate(model.children()):
    groups.append({"params": layer.parameters(), "lr": 1e-3 * 1.5**i})
optimizer = torch.optim.SGD(groups)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
