# expect: nothing
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    @property
    def requires_grad(self) -> bool:
        return self.scale.requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.scale.requires_grad = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


torch.manual_seed(0)
gate, head = Gate(), nn.Linear(4, 1)
gate.requires_grad = False
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
optimizer.momentum = 0.9
print(optimizer.momentum)
for _ in range(10):
    optimizer.zero_grad()
    head(gate(torch.randn(8, 4))).pow(2).mean().backward()
    optimizer.step()
