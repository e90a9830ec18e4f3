# expect: SS105 line 12
import torch
from torch.nn.utils import clip_grad_norm_

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu")
for index in range(16):
    loss = model(torch.randn(8, 4)).pow(2).mean() / 4
    scaler.scale(loss).backward()
    if (index + 1) % 4 == 0:
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
