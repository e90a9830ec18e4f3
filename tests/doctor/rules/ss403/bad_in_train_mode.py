# expect: nothing; watch: SS403 line 15
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), 8, shuffle=True)
held_out = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 1)), 8)
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    print(sum(((net(x) - y) ** 2).sum().item() for x, y in held_out))
