# expect: SS303 line 22; watch: nothing
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
name = "cyclic" if torch.rand(1) < 2 else "step"
if name == "step":
    schedule = lr_scheduler.StepLR(optimizer, 30)
elif name == "cyclic":
    schedule = lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False)
else:
    raise SystemExit(name)
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    schedule.step()
