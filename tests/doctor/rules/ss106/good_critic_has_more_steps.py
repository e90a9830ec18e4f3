# expect: nothing
import torch

generator, critic = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
for index in range(10):
    opt_c.zero_grad()
    opt_g.zero_grad()
    fake = generator(torch.randn(8, 2))
    (critic(fake.detach()) - critic(torch.randn(8, 4))).mean().backward()
    opt_c.step()
    if index % 5 == 0:
        (-critic(fake)).mean().backward()
        opt_g.step()
