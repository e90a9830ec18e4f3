# expect: SS101 line 23, SS310 line 23
import torch
from torch import nn, optim


def make_optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.Adam(model.parameters(), lr=0.01)


def make_schedule(optimizer: optim.Optimizer) -> optim.lr_scheduler.LRScheduler:
    return optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


model = nn.Linear(4, 3)
optimizer, scheduler = make_optimizer(model), make_optimizer(model)
for _ in range(4):
    for _ in range(5):
        optimizer.zero_grad()
        y = torch.randint(3, (8,))
        nn.functional.cross_entropy(model(torch.randn(8, 4)), y).backward()
        optimizer.step()
    print(optimizer.param_groups[0]["lr"])
    scheduler.step()
