# expect: SS107 line 13; watch: nothing
import torch
from torch import nn

model = nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
batches_seen, accumulate = 0, 4
for _ in range(16):
    batches_seen += 1
    output = model(torch.randn(8, 4))
    loss = nn.functional.cross_entropy(output, torch.randint(3, (8,)))
    loss = loss / batches_seen
    loss.backward()
    if batches_seen >= accumulate:
        optimizer.step()
        optimizer.zero_grad()
        batches_seen = 0
