# expect: nothing
import torch
from torch.optim.lr_scheduler import ConstantLR, LinearLR, SequentialLR

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warmup = LinearLR(optimizer, total_iters=2)
rest = ConstantLR(optimizer, factor=1.0)
schedule = SequentialLR(optimizer, [warmup, rest], milestones=[2])
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    schedule.step()
