# expect: nothing
import torch
from torch import nn


class Learner:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        x, y = torch.randn(32, 4), torch.randint(2, (32,))
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


learner = Learner()
for _ in range(3):
    learner.step()
