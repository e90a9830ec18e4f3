# expect: nothing
import torch
import torch.nn.functional as F

first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
x = torch.randn(8, 4)
p, q = first(x).softmax(1), second(x).softmax(1)
middle = ((p + q) / 2).clamp_min(1e-8).log()
loss = F.kl_div(middle, p, reduction="batchmean") + F.kl_div(middle, q, reduction="batchmean")
(loss / 2).backward()
