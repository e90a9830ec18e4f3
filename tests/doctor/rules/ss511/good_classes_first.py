# expect: nothing
import torch
from torch import nn

head = nn.Linear(8, 10)
hidden, targets = torch.randn(4, 7, 8), torch.randint(10, (4, 7))
log_probabilities = head(hidden).transpose(1, 2).log_softmax(dim=1)
nn.functional.nll_loss(log_probabilities, targets).backward()
