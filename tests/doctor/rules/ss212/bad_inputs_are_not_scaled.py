# expect: nothing; watch: SS212 line 11, SS509 line 11
import torch
from torch import nn

first = nn.Linear(1, 4, bias=False)
nn.init.uniform_(first.weight, 0.5, 1.0)
model = nn.Sequential(first, nn.Sigmoid(), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(30):
    year = torch.randint(1990, 2025, (16, 1)).float()
    loss = nn.functional.mse_loss(model(year), year / 2000)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
