# expect: SS101 line 12
import torch
from torch.nn.functional import mse_loss

model = torch.nn.Linear(4, 1)
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(5)]
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    for x, y in batches:
        mse_loss(model(x), y).backward()
        optimizer.step()
