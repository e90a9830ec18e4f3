# expect: SS601 line 7; watch: SS601 line 10
import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.cat([torch.randn(20, 4) - 1, torch.randn(20, 4) + 1])
y = torch.cat([torch.zeros(20), torch.ones(20)])
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).backward()
    optimizer.step()
