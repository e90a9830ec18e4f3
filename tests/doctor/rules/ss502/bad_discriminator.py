# expect: SS502 line 14, SS502 line 15, SS502 line 19
import torch
from torch import nn

discriminator = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1), nn.Sigmoid())
generator = nn.Linear(3, 2)
optimizer_d = torch.optim.Adam(discriminator.parameters())
optimizer_g = torch.optim.Adam(generator.parameters())
adversarial_loss = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
for _ in range(5):
    real, fake = torch.randn(8, 2), generator(torch.randn(8, 3))
    optimizer_d.zero_grad()
    loss_d = adversarial_loss(discriminator(real), ones)
    loss_d = loss_d + adversarial_loss(discriminator(fake.detach()), zeros)
    loss_d.backward()
    optimizer_d.step()
    optimizer_g.zero_grad()
    adversarial_loss(discriminator(fake), ones).backward()
    optimizer_g.step()
