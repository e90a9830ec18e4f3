# expect: SS101 line 12
import torch


class Learner:
    def __init__(self) -> None:
        self.net = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self, x: torch.Tensor) -> None:
        self.net(x).pow(2).mean().backward()
        self.opt.step()

    def fit(self) -> None:
        for _ in range(10):
            self.step(torch.randn(8, 4))


Learner().fit()
