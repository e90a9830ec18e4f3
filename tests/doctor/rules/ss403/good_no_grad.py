# expect: nothing
import torch
from torch import nn

model = nn.Linear(4, 2)
batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
model.eval()
with torch.no_grad():
    for x, y in batches:
        print((model(x).argmax(1) == y).sum().item())
