# expect: SS402 line 26, SS403 line 26; watch: SS403 line 26
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.drop(self.body(x).relu()))


def train_epoch(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def measure(model, loader):
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return correct / len(loader.dataset)


def make_data(n):
    return TensorDataset(torch.randn(n, 4), torch.randint(2, (n,)))


train_loader = DataLoader(make_data(32), 8, shuffle=True)
val_loader = DataLoader(make_data(16), 8)
net = Net()
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    train_epoch(net, train_loader, sgd)
    print(measure(net, val_loader))
