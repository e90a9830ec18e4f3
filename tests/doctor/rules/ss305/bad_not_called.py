# expect: SS305 line 7
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
lr_scheduler = CosineAnnealingLR(optimizer, T_max=5)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    lr_scheduler.step  # noqa: B018
