# expect: SS209 line 7, SS501 line 7; watch: SS501 line 7
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))
criterion = nn.CrossEntropyLoss()
loss = criterion(model.forward(torch.randn(8, 4)), torch.randint(3, (8,)))
loss.backward()
