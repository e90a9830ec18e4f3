# expect: SS504 line 8
import torch
import torch.nn.functional as F

first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
x = torch.randn(8, 4)
log_p, q = first(x).log_softmax(1), second(x).softmax(1).detach()
F.kl_div(log_p.exp(), q, reduction="batchmean").backward()
