# expect: nothing
import torch
from torch import nn

discriminator = nn.Linear(2, 1)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(discriminator.parameters())
for _ in range(10):
    real, fake = torch.randn(16, 2), torch.rand(16, 2)
    optimizer.zero_grad()
    loss = criterion(discriminator(real), 0.7 + 0.5 * torch.rand(16, 1))
    loss = loss + criterion(discriminator(fake), 0.3 * torch.rand(16, 1))
    loss.backward()
    optimizer.step()
