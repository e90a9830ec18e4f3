# expect: SS304 line 14; watch: nothing
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = ReduceLROnPlateau(optimizer, mode="max", patience=2)
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    val_loss = loss.item()
    schedule.step(val_loss)
