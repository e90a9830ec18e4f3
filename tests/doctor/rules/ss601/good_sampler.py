# expect: nothing
import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset, WeightedRandomSampler

first = TensorDataset(torch.randn(16, 4), torch.zeros(16, 1))
second = TensorDataset(torch.randn(16, 4), torch.ones(16, 1))
sampler = WeightedRandomSampler(torch.ones(32), 32)
loader = DataLoader(ConcatDataset([first, second]), batch_size=8, sampler=sampler)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
