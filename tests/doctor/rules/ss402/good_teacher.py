# expect: nothing
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))


student, teacher = build(), build()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(5):
    x = torch.randn(8, 4)
    with torch.no_grad():
        wanted = teacher(x)
    loss = nn.functional.mse_loss(wanted, student(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
            old.lerp_(new, 0.1)
