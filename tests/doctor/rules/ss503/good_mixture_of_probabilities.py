# expect: nothing
import torch
import torch.nn.functional as F

first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
x, y = torch.randn(8, 4), torch.randint(3, (8,))
mixture = (first(x).softmax(1) + second(x).softmax(1)) / 2
F.nll_loss(mixture.clamp_min(1e-8).log(), y).backward()
