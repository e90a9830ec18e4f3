# expect: nothing
import torch
from torch import nn


class Imputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.cat([x.nan_to_num(), x.isnan().float()], 1))


model = Imputed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    x = torch.randn(16, 4)
    x[torch.rand(16, 4) < 0.1] = float("nan")
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
