# expect: nothing; watch: SS116 line 22
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


net = Net()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(6):
    x, y = torch.randn(8, 1, 6, 6), torch.randint(2, (8,))
    optimizer.zero_grad()
    for part, labels in zip(x.chunk(2), y.chunk(2)):
        (nn.functional.cross_entropy(net(part), labels) / 2).backward()
    optimizer.step()
