# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    for index, (x, y) in enumerate(loader):
        (torch.nn.functional.mse_loss(model(x), y) / 4).backward()
        if (index + 1) % 4 == 0 or index + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
