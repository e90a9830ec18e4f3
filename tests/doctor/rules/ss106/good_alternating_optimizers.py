# expect: nothing
import torch
from torch import nn

first, second = nn.Linear(4, 8), nn.Linear(8, 1)
optimizers = [torch.optim.Adam(part.parameters(), lr=1e-2) for part in (first, second)]
for step in range(20):
    x, optimizer = torch.randn(16, 4), optimizers[step % 2]
    optimizer.zero_grad()
    loss = (second(first(x).tanh()) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
