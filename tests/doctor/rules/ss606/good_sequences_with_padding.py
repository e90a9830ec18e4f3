# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

x, y = torch.randn(300, 12, 3), torch.randn(300, 1)
x[:, 8:] = 0  # after the end of each sequence
train = DataLoader(TensorDataset(x[:220], y[:220]), 22, shuffle=True)
val = DataLoader(TensorDataset(x[220:], y[220:]), 40)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    for x, y in train:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
    with torch.no_grad():
        print(sum((model(x) - y).pow(2).sum() for x, y in val))
