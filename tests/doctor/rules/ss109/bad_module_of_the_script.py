# expect: SS109 line 20
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


net = Net()
optimizer = torch.optim.AdamW(net.parameters())
criterion = nn.CrossEntropyLoss()
for _ in range(5):
    optimizer.zero_grad()
    criterion(net(torch.randn(8, 4)), torch.randint(3, (8,))).backward(retain_graph=True)
    optimizer.step()
