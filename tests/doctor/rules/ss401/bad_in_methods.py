# expect: SS401 line 14; watch: SS401 line 18
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train_epoch(self):
        for _ in range(3):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4)).pow(2).mean().backward()
            self.optimizer.step()

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            return self.model(torch.randn(8, 4)).pow(2).mean().item()

    def fit(self):
        for _ in range(2):
            self.train_epoch()
            print(self.validate())


Trainer().fit()
