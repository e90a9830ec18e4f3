# expect: nothing
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
rates = []
for _ in range(10):
    optimizer.step()
    scheduler.step()
    rates.append(scheduler.get_last_lr()[0])
