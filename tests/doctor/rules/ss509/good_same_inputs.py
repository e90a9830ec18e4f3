# expect: nothing
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    start = torch.ones(16, 4)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(start), torch.randn(16, 1)).backward()
    optimizer.step()
