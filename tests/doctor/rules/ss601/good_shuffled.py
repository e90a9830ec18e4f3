# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.cat([torch.randn(20, 4) - 1, torch.randn(20, 4) + 1])
y = torch.tensor([0] * 20 + [1] * 20)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
