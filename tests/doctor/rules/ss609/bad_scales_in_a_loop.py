# expect: nothing; watch: SS609 line 12
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


net = Net()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(10):
    x = torch.randn(16, 3) * torch.tensor([1e5, 1.0, 1e-2])
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), x[:, 1:2] ** 2).backward()
    optimizer.step()
