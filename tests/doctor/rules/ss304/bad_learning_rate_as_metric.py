# expect: SS304 line 12
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = ReduceLROnPlateau(optimizer, patience=3)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step(optimizer.param_groups[0]["lr"])
