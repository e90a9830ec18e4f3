# expect: nothing
import torch
from torch.optim.lr_scheduler import StepLR

model = torch.nn.Linear(4, 1)
frozen = torch.nn.Linear(4, 1)
optimizer_a = torch.optim.SGD(frozen.parameters(), lr=0.1)
scheduler_a = StepLR(optimizer_a, 2)  # its own optimizer is not stepped yet
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, 2)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
    scheduler_a.step()
