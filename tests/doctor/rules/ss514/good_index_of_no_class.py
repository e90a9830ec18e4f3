# expect: nothing
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(ignore_index=-1)
for _ in range(10):
    optimizer.zero_grad()
    criterion(model(torch.randn(16, 4)), torch.randint(-1, 2, (16,))).backward()
    optimizer.step()
