# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

y = torch.randint(3, (800,))
x = nn.functional.one_hot(y, 3) + 0.01 * torch.randn(800, 3)
loader = DataLoader(TensorDataset(20 * x, y), batch_size=32, shuffle=True)
model = nn.Linear(3, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(15):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        for inputs, targets in loader:
            print(nn.functional.cross_entropy(model(inputs), targets).item())
