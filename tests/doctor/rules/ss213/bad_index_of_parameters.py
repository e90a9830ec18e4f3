# expect: SS213 line 8; watch: SS213 line 18
import torch
from torch import nn


def make_groups(model: nn.Module, lr: float, layer_decay: float):
    return [
        {"params": [parameter], "lr": lr * layer_decay**index}
        for index, (name, parameter) in enumerate(model.named_parameters())
    ]


model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(make_groups(model, 0.1, 0.75))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
