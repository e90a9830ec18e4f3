# expect: nothing; watch: SS508 line 12
import torch
from torch import nn

model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())
for step in range(10):
    tokens = torch.randint(1, 20, (8, 9))
    for row, length in zip(tokens, (9, 8, 6, 5, 4, 4, 3, 2), strict=True):
        row[length:] = 0
    logits = model(tokens[:, :-1])
    loss = criterion(logits.reshape(-1, 20), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
