# expect: SS403 line 17
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
for _ in range(5):
    model.train()
    for x, y in batches[:3]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    correct = 0
    for x, y in batches[3:]:
        correct += (model(x).argmax(1) == y).sum().item()
    print(correct)
