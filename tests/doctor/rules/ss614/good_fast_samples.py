# expect: nothing
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(120, 4), torch.randn(120, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=4, shuffle=True):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    time.sleep(0.005)  # a larger model
