# expect: SS213 line 22; watch: SS213 line 28
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


model = Net()
lr = 0.01
groups = [{"params": model.head.parameters(), "lr": lr}]
for layer in model.layers:
    lr *= 0.8
    groups.append({"params": layer.parameters(), "lr": lr})
optimizer = torch.optim.SGD(groups)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
