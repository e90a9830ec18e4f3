# expect: nothing
import torch
from torch import nn


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.body = nn.Linear(1, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.scale(time)


model = Conditional()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    x, time = torch.randn(32, 4), torch.full((32, 1), 0.5)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x, time), x.sum(1, keepdim=True)).backward()
    optimizer.step()
