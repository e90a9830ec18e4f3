# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

series = torch.randn(40, 4).cumsum(0)
loader = DataLoader(TensorDataset(series[:-1], series[1:]), batch_size=8)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
