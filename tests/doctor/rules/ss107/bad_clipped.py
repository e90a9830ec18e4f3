# expect: SS107 line 10
import torch
from torch import nn

model = nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters())
criterion = nn.CrossEntropyLoss()
accumulate = 8
for index in range(1, 33):
    criterion(model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()
    if index % accumulate == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
