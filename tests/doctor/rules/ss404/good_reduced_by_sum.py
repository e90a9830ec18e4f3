# expect: nothing
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(100, 4), torch.randint(3, (100,)))
loader = DataLoader(data, batch_size=64)
model = torch.nn.Linear(4, 3)
total = 0.0
with torch.inference_mode():
    for x, y in loader:
        total += F.cross_entropy(model(x), y, reduction="sum").item()
print(total / len(loader.dataset))
