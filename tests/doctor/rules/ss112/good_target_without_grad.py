# expect: nothing
import copy

import torch

model = torch.nn.Linear(4, 2)
teacher = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    x = torch.randn(8, 4)
    with torch.no_grad():
        target = teacher(x)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), target).backward()
    optimizer.step()
