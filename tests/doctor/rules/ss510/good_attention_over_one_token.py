# expect: nothing
import torch
import torch.nn.functional as F
from torch import nn

score, out = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*score.parameters(), *out.parameters()])
for length in (1, 1, 3, 1, 2, 1):
    x = torch.randn(8, length, 4)
    pooled = (score(x).softmax(1) * x).sum(1)
    optimizer.zero_grad()
    F.binary_cross_entropy_with_logits(out(pooled), torch.ones(8, 1)).backward()
    optimizer.step()
