# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Sigmoid())
criterion = nn.BCELoss()
criterion(model(torch.randn(8, 4)), torch.randint(2, (8, 1)).float()).backward()
