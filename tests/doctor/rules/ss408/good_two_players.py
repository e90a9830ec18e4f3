# expect: nothing
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(256, 2) + 3), batch_size=32, shuffle=True)
generator = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
d_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
for epoch in range(15):
    for (real,) in loader:
        fake = generator(torch.randn(len(real), 2))
        d_optimizer.zero_grad()
        d_loss = bce(critic(real), torch.ones(len(real), 1))
        d_loss = d_loss + bce(critic(fake.detach()), torch.zeros(len(real), 1))
        d_loss.backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        bce(critic(fake), torch.ones(len(real), 1)).backward()
        g_optimizer.step()
