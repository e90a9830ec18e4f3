# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))

model = nn.Linear(4, 1)
first = torch.optim.SGD(model.parameters(), lr=0.1)
second = torch.optim.Adam(model.parameters())
loader = DataLoader(data, 8, shuffle=True)
for i in range(2):
    torch.manual_seed(0)
    optimizer = first if i == 0 else second
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
