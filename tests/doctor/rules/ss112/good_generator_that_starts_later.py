# expect: nothing
import torch
from torch import nn

generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]
for iteration in range(60):
    fake = generator(torch.randn(16, 2))
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = critic(fake.detach()).mean() - critic(torch.randn(16, 4)).mean()
    if iteration >= 30:  # the critic is trained alone before
        loss = loss + (fake - 1).pow(2).mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
