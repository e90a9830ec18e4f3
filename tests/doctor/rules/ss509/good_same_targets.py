# expect: nothing
import torch
from torch import nn

score = nn.Linear(8, 1)
nn.init.constant_(score.bias, 10)
discriminator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), score, nn.Hardsigmoid())
optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    scores = discriminator(torch.randn(16, 2))
    nn.functional.binary_cross_entropy(scores, torch.ones(16, 1)).backward()
    optimizer.step()
