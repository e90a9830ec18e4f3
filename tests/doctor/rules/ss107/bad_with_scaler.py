# expect: SS107 line 16
import torch
from torch import nn


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu")
        self.criterion = nn.MSELoss()

    def fit(self) -> None:
        for i in range(16):
            loss = self.criterion(self.model(torch.randn(8, 4)), torch.randn(8, 1))
            self.scaler.scale(loss).backward()
            if (i + 1) % 4:
                continue
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()


Trainer().fit()
