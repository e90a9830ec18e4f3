# expect: nothing; watch: SS506 line 19
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * 50


net = Net()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(3):
    x, y = torch.randn(64, 8), torch.randint(3, (64,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
