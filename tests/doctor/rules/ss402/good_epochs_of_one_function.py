# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run_epoch(model, loader, optimizer=None):
    is_training = optimizer is not None
    model.train(is_training)
    total = 0.0
    with torch.set_grad_enabled(is_training):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            if is_training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
    return total / len(loader)


def make_loader(n, shuffle=False):
    return DataLoader(TensorDataset(torch.randn(n, 4), torch.randint(2, (n,))), 8, shuffle=shuffle)


train_loader, val_loader = make_loader(32, shuffle=True), make_loader(16)
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
adam = torch.optim.Adam(net.parameters())
for epoch in range(4):
    run_epoch(net, train_loader, adam)
    print(epoch, run_epoch(net, val_loader))
