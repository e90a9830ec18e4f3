# expect: SS402 line 26, SS403 line 26; watch: SS403 line 26
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, train_loader, val_loader):
        self.model = model
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.optimizer = torch.optim.Adam(model.parameters())
        self.criterion = nn.CrossEntropyLoss()

    def fit(self, epochs):
        for _ in range(epochs):
            for x, y in self.train_loader:
                self.optimizer.zero_grad()
                self.criterion(self.model(x), y).backward()
                self.optimizer.step()
            print(self.validate())

    def validate(self):
        total = 0.0
        for x, y in self.val_loader:
            total += self.criterion(self.model(x), y).item()
        return total / len(self.val_loader)


def make_loader(n, shuffle=False):
    return DataLoader(TensorDataset(torch.randn(n, 4), torch.randint(2, (n,))), 8, shuffle=shuffle)


net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
Trainer(net, make_loader(32, shuffle=True), make_loader(16)).fit(4)
