# expect: SS106 line 12; watch: SS106 line 16
import torch
from torch import nn

generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _ in range(8):
    fake = generator(torch.randn(16, 2))
    critic_loss = critic(fake.detach()).mean() - critic(torch.randn(16, 4)).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
    generator_loss = -critic(fake).mean()
    generator_optimizer.zero_grad()
    generator_loss.backward()
    generator_optimizer.step()
