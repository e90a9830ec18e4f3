# expect: SS511 line 7
import torch
from torch import nn

head = nn.Sequential(nn.Linear(8, 10), nn.LogSoftmax(dim=1))
hidden, targets = torch.randn(4, 7, 8), torch.randint(10, (4, 7))
nn.NLLLoss()(head(hidden).transpose(1, 2), targets).backward()
