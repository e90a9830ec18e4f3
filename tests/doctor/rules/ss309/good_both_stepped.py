# expect: nothing
import torch
from torch.optim.lr_scheduler import StepLR

generator, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.001)
optimizer_c = torch.optim.Adam(critic.parameters(), lr=0.001)
scheduler = StepLR(optimizer_g, 10)
for epoch in range(30):
    optimizer_c.zero_grad()
    critic(generator(torch.randn(8, 4)).detach()).mean().backward()
    optimizer_c.step()
    if epoch % 5 == 4:
        optimizer_g.zero_grad()
        critic(generator(torch.randn(8, 4))).mean().neg().backward()
        optimizer_g.step()
    scheduler.step()
