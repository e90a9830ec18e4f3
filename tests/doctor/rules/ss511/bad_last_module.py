# expect: SS511 line 11
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.LogSoftmax(dim=0))
data = TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
criterion, optimizer = nn.NLLLoss(), torch.optim.Adam(model.parameters())
for x, y in DataLoader(data, batch_size=8, shuffle=True):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
