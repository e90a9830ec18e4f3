# expect: nothing; watch: SS510 line 20
import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.out(x), dim=1)


net = Classifier()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(10):
    x, y = torch.randn(16, 4), torch.randint(2, (16, 1)).float()
    loss = F.binary_cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
