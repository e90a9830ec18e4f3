# expect: nothing
import torch
from torch.optim.swa_utils import SWALR, AveragedModel

model = torch.nn.Linear(4, 1)
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rates = SWALR(optimizer, swa_lr=0.05)
for _ in range(10):
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    average.update_parameters(model)
    rates.step()
