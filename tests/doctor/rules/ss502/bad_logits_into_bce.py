# expect: SS502 line 10
import torch
from torch import nn

model = nn.Linear(4, 1)
nn.init.constant_(model.weight, 0.1)  # the first outputs are between 0 and 1
nn.init.zeros_(model.bias)
criterion = nn.BCELoss()
output = model(torch.rand(8, 4))
criterion(output, torch.randint(2, (8, 1)).float()).backward()
