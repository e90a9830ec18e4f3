# expect: SS115 line 15
import torch


class Fit:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.LBFGS(self.model.parameters())

    def run(self) -> None:
        for _ in range(5):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            self.optimizer.step(lambda: loss.detach())


Fit().run()
