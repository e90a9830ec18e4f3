# expect: nothing
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
model[-1] = nn.Identity()
nn.CrossEntropyLoss()(model(torch.randn(8, 4)), torch.randint(3, (8,))).backward()
