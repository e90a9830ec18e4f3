# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.randint(2, (400, 6)).float()
y = x.sum(1, keepdim=True)
train_loader = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[320:], y[320:]), batch_size=32)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = [(model(inputs) - targets).abs().mean() for inputs, targets in val_loader]
    model.train()
