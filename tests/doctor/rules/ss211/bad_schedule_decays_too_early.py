# expect: nothing; watch: SS211 line 14
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7, weight_decay=0.0)
schedule = ExponentialLR(optimizer, gamma=0.99)
for _ in range(600):
    x = torch.randn(8, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
