# expect: nothing
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 4), torch.randn(32).view(-1, 1))
for x, y in DataLoader(data, batch_size=8, shuffle=True):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
