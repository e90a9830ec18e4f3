# expect: SS601 line 10; watch: SS601 line 15
import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset


class Trainer:
    def __init__(self):
        first = TensorDataset(torch.randn(16, 4), torch.zeros(16, 1))
        second = TensorDataset(torch.randn(16, 4), torch.ones(16, 1))
        self.loader = DataLoader(ConcatDataset([first, second]), batch_size=8)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train_epoch(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()


Trainer().train_epoch()
