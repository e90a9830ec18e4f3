# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
batches = [torch.randn(8, 4) for _ in range(4)]
model.train()
with torch.no_grad():
    for x in batches:
        model(x)
model.eval()
