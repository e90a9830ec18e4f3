# expect: SS413 line 8
import torch
from torch import nn


def update(average: nn.Module, model: nn.Module, decay: float) -> None:
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            old.mul_(decay).add_(new, alpha=1 - decay)


model = nn.Linear(4, 1)
ema = model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    update(ema, model, 0.9)
