# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Embedding(12, 16, padding_idx=0), nn.Linear(16, 12))
criterion = nn.CrossEntropyLoss(ignore_index=0)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    tokens = torch.zeros(6, 10, dtype=torch.long)
    for row in tokens:
        length = int(torch.randint(3, 10, ()))
        row[:length] = torch.randint(1, 12, (length,))
    optimizer.zero_grad()
    criterion(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
