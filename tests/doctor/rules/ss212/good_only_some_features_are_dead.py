# expect: nothing
import torch
from torch import nn

hidden = nn.Linear(4, 2)
nn.init.constant_(hidden.bias[:1], -50.0)
model = nn.Sequential(hidden, nn.ReLU(), nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(30):
    x = torch.randn(1024, 4)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
