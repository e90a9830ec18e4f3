# expect: nothing
# The flag decides after what the schedule is stepped.
import torch
from torch.optim.lr_scheduler import CyclicLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
by_batch = bool(torch.rand(1) < 2)
if by_batch:
    schedule = CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False)
else:
    schedule = StepLR(optimizer, 2)
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if by_batch:
            schedule.step()
    if not by_batch:
        schedule.step()
