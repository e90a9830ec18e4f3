# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.append(nn.Linear(8, 1))
for _ in range(6):
    model.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter -= 0.01 * parameter.grad
