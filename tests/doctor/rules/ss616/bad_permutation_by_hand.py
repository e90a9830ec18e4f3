# expect: SS616 line 11
import torch
from torch import nn
from torch.utils.data import TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = data.tensors
for epoch in range(3):
    torch.manual_seed(0)
    order = torch.randperm(32)
    for i in range(0, 32, 8):
        x, y = inputs[order[i : i + 8]], targets[order[i : i + 8]]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
