# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    tokens = torch.zeros(4, 1, dtype=torch.long)
    for _ in range(3):
        with torch.no_grad():
            token = model(tokens)[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, token], 1)
        loss = nn.functional.cross_entropy(model(tokens)[:, -1], tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
