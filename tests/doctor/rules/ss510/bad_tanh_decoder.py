# expect: nothing; watch: SS510 line 10
import torch
from torch import nn

encoder, decoder = nn.Linear(16, 4), nn.Sequential(nn.Linear(4, 16), nn.Tanh())
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for _ in range(10):
    pixels = 255 * torch.rand(8, 16)
    optimizer.zero_grad()
    nn.functional.l1_loss(decoder(encoder(pixels / 255)), pixels).backward()
    optimizer.step()
