# expect: nothing
import torch
from torch.nn.functional import mse_loss

critic = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
real = torch.tensor(1.0)
for _ in range(10):
    loss = mse_loss(critic(torch.randn(16, 4)), real)  # least squares, as in LSGAN
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
