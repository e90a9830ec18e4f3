# expect: nothing
import torch
from torch.optim.lr_scheduler import StepLR


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
clock = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
scheduler = StepLR(clock, 2)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
    set_lr(optimizer, 0.1 * scheduler.get_last_lr()[0])
