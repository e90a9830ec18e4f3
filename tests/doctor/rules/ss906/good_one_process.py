# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
