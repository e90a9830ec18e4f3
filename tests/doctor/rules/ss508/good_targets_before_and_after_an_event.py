# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters())
for step in range(10):
    event = torch.randint(2, 12, (16, 1))
    labels = (torch.arange(12)[None] >= event).long()
    inputs = torch.randn(16, 12, 3) + labels[..., None]
    loss = criterion(model(inputs).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
