# expect: SS403 line 19
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train_loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), 8, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), 8)
model = nn.Linear(4, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    total = 0.0
    for i, (x, y) in enumerate(test_loader):
        output = model(x)
        total += criterion(output, y).item()
    print(epoch, total / len(test_loader))
