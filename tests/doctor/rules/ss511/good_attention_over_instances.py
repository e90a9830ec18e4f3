# expect: nothing
import torch
from torch import nn

score, classify = nn.Linear(4, 1), nn.Linear(4, 2)
bag = torch.randn(20, 4)  # one sample: a bag of 20 instances
weights = torch.softmax(score(bag), dim=0)
logits = classify((weights * bag).sum(0, keepdim=True))
nn.functional.cross_entropy(logits, torch.tensor([1])).backward()
