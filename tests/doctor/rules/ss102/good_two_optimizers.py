# expect: nothing
import torch

generator, critic = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
for _ in range(5):
    fake = generator(torch.randn(8, 2))
    critic(fake).mean().backward()
    opt_c.zero_grad()  # its gradients of this loss are not wanted
    opt_g.step()
    opt_g.zero_grad()
    (critic(torch.randn(8, 4)) - critic(fake.detach())).mean().backward()
    opt_c.step()
    opt_c.zero_grad()
