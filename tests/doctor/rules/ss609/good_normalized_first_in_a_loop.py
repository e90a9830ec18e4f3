# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    x = torch.randn(16, 3) * torch.tensor([1e5, 1.0, 1e-2])
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x[:, 1:2] + torch.randn(16, 1)).backward()
    optimizer.step()
