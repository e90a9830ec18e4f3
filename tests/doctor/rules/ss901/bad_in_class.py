# expect: SS901 line 22; ranks: SS901 line 22
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Trainer:
    def __init__(self) -> None:
        self.model = nn.parallel.DistributedDataParallel(Net())
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, x: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model.module(x).pow(2).mean().backward()
        self.optimizer.step()


torch.distributed.init_process_group("gloo")
trainer = Trainer()
for _ in range(10):
    trainer.step(torch.randn(8, 4))
