# expect: nothing; watch: SS210 line 25
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).tanh())


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(16):
    x = torch.randn(8, 4)
    net.head.zero_grad()
    if step < 4:
        net.encoder.zero_grad()
    else:
        net.encoder.requires_grad_(False)
    nn.functional.mse_loss(net(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
