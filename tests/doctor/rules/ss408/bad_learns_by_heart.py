# expect: nothing; watch: SS408 line 16
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = torch.randn(256, 8), torch.randint(3, (256,))
train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=64)
model = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for epoch in range(60):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, targets in val_loader:
            total += criterion(model(inputs), targets).item() * len(targets)
    print(epoch, total / 192)
