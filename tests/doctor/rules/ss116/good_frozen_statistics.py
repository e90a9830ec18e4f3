# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
model[1].eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for index in range(24):
    loss = nn.functional.mse_loss(model(torch.randn(4, 4)), torch.randn(4, 1)) / 4
    loss.backward()
    if (index + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
