# expect: nothing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
loader = DataLoader(data, batch_size=8)
model, correct = nn.Linear(4, 3).eval(), 0
with torch.no_grad():
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
print(correct / len(data))
