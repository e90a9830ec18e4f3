# expect: nothing
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x).masked_fill(torch.tensor([False, False, True]), -1e9)


policy, loss = Policy(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for _ in range(30):
    x = torch.randn(16, 4)
    optimizer.zero_grad()
    loss(policy(x), (x[:, 0] > 0).long()).backward()
    optimizer.step()
