# expect: nothing
import torch
from torch import nn

hidden = nn.Linear(4, 16)
nn.init.constant_(hidden.bias, -20)
model = nn.Sequential(hidden, nn.LeakyReLU(0.1), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(30):
    x = torch.randn(32, 4)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
