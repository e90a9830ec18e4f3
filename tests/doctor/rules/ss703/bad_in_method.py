# expect: SS703 line 11
import torch


class Learner:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x: torch.Tensor) -> None:
        torch.cuda.empty_cache()
        self.optimizer.zero_grad()
        self.model(x).pow(2).mean().backward()
        self.optimizer.step()

    def fit(self) -> None:
        for _ in range(10):
            self.step(torch.randn(8, 4))


Learner().fit()
