# expect: nothing; watch: SS212 line 13, SS509 line 21
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.act, self.out = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)
        nn.init.constant_(self.hidden.bias, -50.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.act(self.hidden(x)))


net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(30):
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
