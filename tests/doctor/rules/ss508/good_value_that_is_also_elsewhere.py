# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    words = torch.randint(12, (6, 10))
    tags = (words > 9).long()  # most words have the tag 0, also at the ends
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(words).transpose(1, 2), tags).backward()
    optimizer.step()
