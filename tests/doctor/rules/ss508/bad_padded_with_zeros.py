# expect: nothing; watch: SS508 line 13
import torch
from torch import nn

model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    tokens = torch.zeros(6, 10, dtype=torch.long)
    for row in tokens:
        length = int(torch.randint(3, 10, ()))
        row[:length] = torch.randint(1, 12, (length,))
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, 12), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
