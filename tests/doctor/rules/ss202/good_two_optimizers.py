# expect: nothing
import torch
from torch import nn

G, D = nn.Linear(2, 4), nn.Linear(4, 1)
g_optimizer = torch.optim.Adam(G.parameters())
d_optimizer = torch.optim.Adam(D.parameters())
for _ in range(3):
    fake = G(torch.randn(8, 2))
    d_loss = D(fake.detach()).mean() - D(torch.randn(8, 4)).mean()
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    g_loss = -D(G(torch.randn(8, 2))).mean()
    g_loss.backward()
    g_optimizer.step()
