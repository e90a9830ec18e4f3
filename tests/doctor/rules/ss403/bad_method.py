# expect: SS403 line 14
import torch
from torch import nn


class Tester:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def test(self, batches):
        self.net.eval()
        losses = []
        for x, y in batches:
            losses.append(nn.functional.cross_entropy(self.net(x), y).item())
        return sum(losses)


print(Tester().test([(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(3)]))
