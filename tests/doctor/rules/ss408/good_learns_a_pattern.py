# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(512, 8)
y = (x[:, 0] + 0.5 * torch.randn(512) > 0).long()
train_loader = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=64)
model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(20):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        for inputs, targets in val_loader:
            print(nn.functional.cross_entropy(model(inputs), targets).item())
