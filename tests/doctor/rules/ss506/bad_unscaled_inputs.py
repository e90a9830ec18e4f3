# expect: nothing; watch: SS506 line 11
import torch
from torch import nn

model = nn.Linear(8, 5)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    pixels, labels = 255 * torch.rand(32, 8), torch.randint(5, (32,))
    optimizer.zero_grad()
    criterion(model(pixels), labels).backward()
    optimizer.step()
