# expect: SS107 line 12
import torch
from torch import nn

accumulation_steps = 2 * 2
model = nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    optimizer.zero_grad()
    for micro_step in range(accumulation_steps):
        output = model(torch.randn(8, 4))
        nn.functional.cross_entropy(output, torch.randint(3, (8,))).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
