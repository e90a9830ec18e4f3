# expect: SS407 line 33
import io

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Learner:
    def __init__(self):
        train = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
        test = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
        self.train_loader = DataLoader(train, batch_size=8, shuffle=True)
        self.testloader = DataLoader(test, batch_size=8)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.lowest, self.file = float("inf"), io.BytesIO()

    @torch.inference_mode()
    def evaluate(self):
        total = 0.0
        for x, y in self.testloader:
            total += F.mse_loss(self.model(x), y, reduction="sum").item()
        return total

    def fit(self):
        for _ in range(2):
            for x, y in self.train_loader:
                self.optimizer.zero_grad()
                F.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            loss = self.evaluate()
            if loss < self.lowest:
                self.lowest = loss
                self.file.seek(0)
                torch.save(self.model.state_dict(), self.file)


Learner().fit()
