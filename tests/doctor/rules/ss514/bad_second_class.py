# expect: SS514 line 11
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    logits, y = model(torch.randn(16, 4)), torch.randint(2, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(logits, y, ignore_index=1).backward()
    optimizer.step()
