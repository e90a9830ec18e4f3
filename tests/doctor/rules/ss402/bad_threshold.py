# expect: nothing; watch: SS402 line 21
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters())
criterion = nn.BCEWithLogitsLoss()
data = TensorDataset(torch.randn(48, 4), torch.rand(48, 2).round())
train_loader = DataLoader(data, batch_size=8, shuffle=True)
val_loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.rand(16, 2).round()), 8)
for _ in range(3):
    net.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()
    hits = 0
    with torch.no_grad():
        for x, y in val_loader:
            predicted = torch.sigmoid(net(x)) > 0.5
            hits += (predicted & (y > 0.5)).sum().item()
    print(hits)
