# expect: nothing; ranks: SS903 line 25
import torch
import torch.distributed as dist
from torch import nn


class Gated(nn.Module):
    def __init__(self, use_gate: bool = False) -> None:
        super().__init__()
        self.use_gate = use_gate
        self.gate, self.out = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.gate(x) if self.use_gate else x)


class Trainer:
    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.model = nn.parallel.DistributedDataParallel(Gated())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).pow(2).mean().backward()
        self.optimizer.step()


trainer = Trainer()
for _ in range(3):
    trainer.step()
