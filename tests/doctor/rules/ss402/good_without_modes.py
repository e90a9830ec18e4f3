# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
x_val, y_val = torch.randn(8, 4), torch.randn(8, 1)
with torch.no_grad():
    print(nn.functional.mse_loss(model(x_val), y_val).item())
