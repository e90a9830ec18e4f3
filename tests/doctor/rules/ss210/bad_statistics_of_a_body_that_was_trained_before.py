# expect: nothing; watch: SS210 line 14
import torch
from torch import nn

body, head = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 2)
model = nn.Sequential(body, head)


def fit(parameters, steps):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(steps):
        x, y = torch.randn(16, 4), torch.randint(2, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


fit(model.parameters(), 5)
body.requires_grad_(False)
fit(head.parameters(), 20)
