# expect: SS808 line 20
import os

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


model = Net()
optimizer = torch.optim.Adam(model.parameters())
if os.path.exists("missing.pt"):
    Net().load_state_dict(torch.load("missing.pt", map_location="cpu"))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
