# expect: nothing
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
model[0].weight.requires_grad = False
scale = nn.Parameter(torch.ones(4))
scale.requires_grad = False
for layer in model.children():
    if isinstance(layer, nn.Linear):
        layer.bias.requires_grad = True
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    y = torch.randint(3, (8,))
    nn.functional.cross_entropy(model(torch.randn(8, 4)), y).backward()
    optimizer.step()
