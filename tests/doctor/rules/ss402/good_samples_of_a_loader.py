# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8)
model.train()
with torch.no_grad():
    samples = [torch.cat([model(x) for (x,) in loader]) for _ in range(5)]
print(torch.stack(samples).std(0))
