# expect: nothing
import torch
from torch import nn


class Controller:
    def __init__(self, goal: float | None) -> None:
        self.policy = nn.Linear(4, 3)
        self.log_weight, self.optimizer = None, None
        if goal is not None:
            self.log_weight = torch.zeros(1).add(0.1).requires_grad_(True)
            self.optimizer = torch.optim.Adam([self.log_weight], lr=0.01)
        self.goal = goal

    def tune(self, steps: int) -> None:
        for _ in range(steps):
            entropy = self.policy(torch.randn(8, 4)).log_softmax(-1).mean(-1)
            if self.optimizer is None:
                continue
            gap = (entropy + self.goal).detach()
            loss = -(self.log_weight.exp() * gap).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


Controller(-1.0).tune(10)
