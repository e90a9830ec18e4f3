# expect: SS310 line 18
import torch
from torch import nn


class Run:
    def __init__(self) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.lr_scheduler = self.optimizer

    def train(self, epochs: int) -> None:
        for _ in range(epochs):
            for _ in range(3):
                self.optimizer.zero_grad()
                self.model(torch.randn(8, 4)).pow(2).mean().backward()
                self.optimizer.step()
            self.lr_scheduler.step()


Run().train(3)
