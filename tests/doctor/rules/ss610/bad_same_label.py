# expect: nothing; watch: SS610 line 10
import torch
from torch.utils.data import DataLoader, TensorDataset

rows = torch.cat([torch.randn(64, 4), torch.ones(64, 1)], 1)  # the last column was not read
data = TensorDataset(rows[:, :4], rows[:, 4].long())
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
