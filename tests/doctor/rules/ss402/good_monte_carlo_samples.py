# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
x, y = torch.randn(8, 4), torch.randn(8, 1)
model.train()
with torch.no_grad():
    samples = torch.stack([model(x) for _ in range(20)])
print(samples.std(0), nn.functional.mse_loss(samples.mean(0), y))
