# expect: nothing
import copy

import torch
from torch import nn


class Distilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x)
        return (self.student(x) - target).pow(2).mean()


model = Distilled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.teacher = copy.deepcopy(model.student)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).backward()
    optimizer.step()
