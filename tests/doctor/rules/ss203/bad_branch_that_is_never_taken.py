# expect: nothing; watch: SS203 line 24
import torch
from torch import nn


class Gated(nn.Module):
    def __init__(self, use_gate: bool = False) -> None:
        super().__init__()
        self.use_gate = use_gate
        self.gate, self.out = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x * torch.sigmoid(self.gate(x)) if self.use_gate else x)


class Learner:
    def __init__(self) -> None:
        self.model = Gated()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).abs().mean().backward()
        self.optimizer.step()


learner = Learner()
for _ in range(12):
    learner.step()
