# expect: nothing
import torch
from torch import nn


def attack(model, x, y):
    model.eval()
    x = x.requires_grad_()
    with torch.no_grad():
        print((model(x).argmax(1) == y).float().mean())
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), x)
    return (x + 0.1 * gradient.sign()).detach()


model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    y = torch.randint(2, (8,))
    x = attack(model, torch.randn(8, 4), y)
    model.train()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
