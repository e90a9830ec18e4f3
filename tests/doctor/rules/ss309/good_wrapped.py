# expect: nothing
import torch
from torch.optim.lr_scheduler import StepLR


class Slow:
    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def step(self) -> None:
        self.inner.step()


model = torch.nn.Linear(4, 1)
other = torch.optim.SGD(model.parameters(), lr=0.1)
base = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(base, 2)
slow = Slow(base)
for _ in range(5):
    other.zero_grad()
    base.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    other.step()
    slow.step()
    scheduler.step()
