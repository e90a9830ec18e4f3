# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train_set = TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
val_set = TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))
train_loader, val_loader = DataLoader(train_set, 8, shuffle=True), DataLoader(val_set, 8)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    for x, y in train_loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    # The loss of all validation batches is minimised too, by a step of its own.
    total = 0.0
    for x, y in val_loader:
        total = total + criterion(model(x), y)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
