# expect: SS207 line 10; watch: SS207 line 15
import torch
from torch import nn
from torch.optim import AdamW


class Learner:
    def __init__(self, decay=0.05):
        self.net = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Flatten())
        self.optimizer = AdamW(self.net.parameters(), 1e-3, weight_decay=decay)

    def step(self, x):
        self.optimizer.zero_grad()
        self.net(x).pow(2).mean().backward()
        self.optimizer.step()


learner = Learner()
for _ in range(3):
    learner.step(torch.randn(8, 1, 6))
