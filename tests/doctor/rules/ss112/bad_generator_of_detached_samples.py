# expect: nothing; watch: SS112 line 14
import torch
from torch import nn

generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _ in range(8):
    fake = generator(torch.randn(16, 2)).detach()
    critic_optimizer.zero_grad()
    (critic(fake).mean() - critic(torch.randn(16, 4)).mean()).backward()
    critic_optimizer.step()
    generator_optimizer.zero_grad()
    (-critic(fake).mean()).backward()
    generator_optimizer.step()
