# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(1000, 6)
y = (x[:, 0] + 0.3 * torch.randn(1000) > 0).long()
train_loader = DataLoader(TensorDataset(x[:800], y[:800]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[800:], y[800:]), batch_size=100)
model = nn.Linear(6, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(12):
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        for inputs, targets in val_loader:
            print(nn.functional.cross_entropy(model(inputs), targets).item())
