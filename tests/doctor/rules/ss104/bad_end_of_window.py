# expect: SS104 line 11
import torch
from torch.nn.utils import clip_grad_norm_

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    for _ in range(4):
        (model(torch.randn(8, 4)).pow(2).mean() / 4).backward()
    optimizer.step()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad()
