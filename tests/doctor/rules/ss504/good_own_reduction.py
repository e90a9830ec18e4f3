# expect: nothing
import torch
import torch.nn.functional as F

first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
x = torch.randn(8, 4)
divergence = F.kl_div(first(x).log_softmax(1), second(x).softmax(1), reduction="none").sum(1)
divergence.mean().backward()
