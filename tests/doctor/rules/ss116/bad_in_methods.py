# expect: nothing; watch: SS116 line 13
import torch
from torch import nn


class Trainer:
    def __init__(self, accumulate: int) -> None:
        self.accumulate = accumulate
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def backward(self) -> None:
        (self.net(torch.randn(2, 4)).pow(2).mean() / self.accumulate).backward()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for _ in range(self.accumulate):
            self.backward()
        self.optimizer.step()


trainer = Trainer(3)
for _ in range(5):
    trainer.step()
