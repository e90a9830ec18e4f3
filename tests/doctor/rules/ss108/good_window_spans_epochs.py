# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
count = 0
for _ in range(3):
    for x, y in loader:
        (torch.nn.functional.mse_loss(model(x), y) / 4).backward()
        count += 1
        if count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
