# expect: SS705 line 11
import torch


class Learner:
    def __init__(self) -> None:
        self.net = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self, x: torch.Tensor) -> None:
        net = torch.compile(self.net, backend="eager")
        self.optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        self.optimizer.step()


learner = Learner()
for _ in range(4):
    learner.step(torch.randn(8, 4))
