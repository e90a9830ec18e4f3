# expect: nothing
import torch
from torch import nn

generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
first = torch.optim.Adam(generator.parameters())
second = torch.optim.Adam(critic.parameters())
for _ in range(5):
    fake = generator(torch.randn(8, 2))
    second.zero_grad()
    nn.functional.mse_loss(critic(fake.detach()), torch.zeros(8, 1)).backward()
    second.step()
    first.zero_grad()
    nn.functional.mse_loss(critic(generator(torch.randn(8, 2))), torch.ones(8, 1)).backward()
    first.step()
