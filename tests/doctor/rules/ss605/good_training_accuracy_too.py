# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

x = torch.randn(96, 4)
train_set, val_set = random_split(TensorDataset(x, x.sum(1, keepdim=True)), [64, 32])
loaders = {"train": DataLoader(train_set, 16), "validation": DataLoader(val_set, 16)}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    model.train()
    for inputs, targets in DataLoader(train_set, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for name, loader in loaders.items():
            errors = [(model(inputs) - targets).abs().mean() for inputs, targets in loader]
