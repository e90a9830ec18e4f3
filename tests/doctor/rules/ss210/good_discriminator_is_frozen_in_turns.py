# expect: nothing
import torch
from torch import nn

G = nn.Linear(2, 4)
D = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
g_optimizer = torch.optim.Adam(G.parameters(), lr=1e-3)
d_optimizer = torch.optim.Adam(D.parameters(), lr=1e-3)
for _ in range(10):
    D.requires_grad_(False)
    g_optimizer.zero_grad()
    (-D(G(torch.randn(16, 2))).mean()).backward()
    g_optimizer.step()
    D.requires_grad_(True)
    d_optimizer.zero_grad()
    fake = G(torch.randn(16, 2)).detach()
    (D(fake).mean() - D(torch.randn(16, 4)).mean()).backward()
    d_optimizer.step()
