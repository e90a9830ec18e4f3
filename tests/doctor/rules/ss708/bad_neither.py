# expect: SS708 line 9; watch: skip, needs a GPU
import torch


class Learner:
    def __init__(self):
        self.net = torch.nn.Linear(4, 1)
        options = {"lr": 0.1, "momentum": 0.9}
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), foreach=False, fused=False, **options
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.net(torch.randn(8, 4)).pow(2).mean().backward()
        self.optimizer.step()


learner = Learner()
for _ in range(10):
    learner.step()
