# expect: nothing
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

x = torch.randn(96, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
for fold in range(3):
    held_out = [index for index in range(96) if index % 3 == fold]
    others = [index for index in range(96) if index % 3 != fold]
    train_loader = DataLoader(Subset(data, others), batch_size=16, shuffle=True)
    val_loader = DataLoader(Subset(data, held_out), batch_size=16)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for inputs, targets in val_loader:
            error = (model(inputs) - targets).abs().mean()
