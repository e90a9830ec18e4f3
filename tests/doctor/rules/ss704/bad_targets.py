# expect: SS704 line 13
import torch
from torch import nn


class Learner:
    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = nn.Linear(4, 1).to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def step(self, x: torch.Tensor) -> None:
        real = torch.ones(x.size(0), 1).to(self.device)
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(x), real)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


learner = Learner()
for _ in range(10):
    learner.step(torch.randn(8, 4, device=learner.device))
