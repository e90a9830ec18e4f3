# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
loaders = [DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8) for _ in range(3)]
model.train()
with torch.no_grad():
    for loader in loaders:
        for (x,) in loader:
            model(x)
model.eval()
