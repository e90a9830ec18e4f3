# expect: SS106 line 13
import torch


class Learner:
    def __init__(self) -> None:
        self.net = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def learn_from(self, x: torch.Tensor) -> float:
        loss = self.net(x).pow(2).mean()
        self.opt.zero_grad()
        self.opt.step()
        return loss.item()

    def fit(self) -> None:
        for _ in range(10):
            self.learn_from(torch.randn(8, 4))


Learner().fit()
