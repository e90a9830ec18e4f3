# expect: SS215 line 8; watch: SS215 line 14
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
for name, parameter in model[0].named_parameters():
    parameter.require_grad = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    y = torch.randint(3, (8,))
    nn.functional.cross_entropy(model(torch.randn(8, 4)), y).backward()
    optimizer.step()
