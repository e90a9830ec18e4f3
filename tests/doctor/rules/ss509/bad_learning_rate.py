# expect: nothing; watch: SS509 line 20
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


net, criterion = Net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=1e4)
for _ in range(40):
    x = torch.rand(64, 8)
    optimizer.zero_grad()
    criterion(net(x), (3 * x[:, 0]).long()).backward()
    optimizer.step()
