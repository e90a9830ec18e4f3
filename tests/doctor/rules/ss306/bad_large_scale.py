# expect: nothing; watch: SS306 line 16
import torch
from torch.optim.lr_scheduler import OneCycleLR

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
scheduler = OneCycleLR(optimizer, max_lr=0.01, total_steps=40)
for _ in range(40):
    x = 1000 * torch.randn(8, 4)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
