# expect: nothing; watch: SS510 line 14
import torch
from torch import nn


class Learner:
    def __init__(self) -> None:
        self.model = nn.Linear(4, 1)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.criterion(self.model(x), y).backward()
        self.optimizer.step()


learner = Learner()
for _ in range(10):
    learner.step(torch.randn(16, 4), torch.randint(2, (16, 1)).float())
