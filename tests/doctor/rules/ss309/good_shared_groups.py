# expect: nothing
import torch
from torch.optim.lr_scheduler import StepLR

model = torch.nn.Linear(4, 1)
groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.01}]
first = torch.optim.SGD(groups, lr=0.1)
scheduler = StepLR(first, 2)
optimizer = torch.optim.SGD(groups, lr=0.1)  # keeps the same dicts, so the schedule changes them
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
