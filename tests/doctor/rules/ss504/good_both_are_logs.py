# expect: nothing
import torch
from torch import nn

first, second = nn.Linear(4, 3), nn.Linear(4, 3)
criterion = nn.KLDivLoss(reduction="batchmean", log_target=True)
x = torch.randn(8, 4)
criterion(first(x).log_softmax(-1), second(x).log_softmax(-1).detach()).backward()
