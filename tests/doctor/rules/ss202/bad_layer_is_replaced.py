# expect: SS202 line 18; watch: SS202 line 23
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.body(x).relu())


net = Net(10)
optimizer = torch.optim.AdamW(net.parameters())
net.head = nn.Linear(8, 2)
for _ in range(5):
    loss = nn.functional.cross_entropy(net(torch.randn(8, 4)), torch.randint(2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
