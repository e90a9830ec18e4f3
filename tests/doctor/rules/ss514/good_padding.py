# expect: nothing
import torch
from torch import nn

torch.manual_seed(0)
tagger = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 5))
optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(ignore_index=0)
for _ in range(10):
    logits = tagger(torch.randint(20, (8, 6))).transpose(1, 2)
    optimizer.zero_grad()
    criterion(logits, torch.randint(5, (8, 6))).backward()
    optimizer.step()
