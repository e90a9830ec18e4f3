# expect: nothing; watch: SS211 line 13
import torch


class Learner:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(16, 4)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=10.0)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(x).sub(y).abs().mean().backward()
        self.optimizer.step()


learner = Learner()
for step in range(600):
    learner.optimizer.param_groups[0]["lr"] *= 1.01
    learner.step(torch.randn(8, 16), torch.randn(8, 4) * step)
