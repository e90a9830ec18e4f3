# expect: nothing; watch: SS608 line 13
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images, labels = torch.randn(33, 3, 8, 8), torch.randint(2, (33,))
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
