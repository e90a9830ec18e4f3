# expect: nothing
import torch
from torch.utils.data import DataLoader, TensorDataset

y = torch.cat([torch.zeros(20), torch.ones(20)])
loader = DataLoader(TensorDataset(torch.randn(40, 4), y), batch_size=8)
model = torch.nn.Linear(4, 1).eval()
with torch.no_grad():
    correct = sum(((model(x).squeeze(1) > 0) == y.bool()).sum() for x, y in loader)
