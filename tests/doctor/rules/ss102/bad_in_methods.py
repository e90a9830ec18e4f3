# expect: SS102 line 12
import torch


class Learner:
    def __init__(self) -> None:
        self.net = torch.nn.Linear(4, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def update(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.opt.zero_grad(set_to_none=True)
        self.opt.step()

    def fit(self) -> None:
        for _ in range(10):
            self.update(self.net(torch.randn(8, 4)).pow(2).mean())


Learner().fit()
