# expect: nothing
import copy

import torch
from torch import nn

student = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
teacher = copy.deepcopy(student)  # also with dropout
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(10):
    x = torch.randn(8, 4)
    with torch.no_grad():
        target = teacher(x).softmax(1)
    optimizer.zero_grad()
    nn.functional.mse_loss(student(x).softmax(1), target).backward()
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
            kept.lerp_(new, 0.01)
