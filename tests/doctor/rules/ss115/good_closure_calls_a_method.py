# expect: nothing
import torch


class Fit:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.LBFGS(self.model.parameters())
        self.x = torch.randn(8, 4)

    def evaluate(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(self.x).pow(2).mean()
        loss.backward()
        return loss

    def run(self) -> None:
        for _ in range(5):
            self.optimizer.step(self.evaluate)


Fit().run()
