# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, 8)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    torch.manual_seed(0)
    order = torch.randperm(32)[:8]
    with torch.no_grad():
        print(model(data.tensors[0][order]).mean())
