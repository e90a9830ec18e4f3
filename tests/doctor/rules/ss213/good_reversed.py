# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
lr, groups = 0.01, []
for layer in reversed(list(model.children())):
    groups.append({"params": layer.parameters(), "lr": lr})
    lr *= 0.8
optimizer = torch.optim.SGD(groups)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
