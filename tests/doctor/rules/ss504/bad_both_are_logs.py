# expect: SS504 line 8, SS504 line 8; watch: SS504 line 8
import torch
import torch.nn.functional as F

first, second = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
x = torch.randn(8, 4)
p, q = F.log_softmax(first(x), dim=-1), F.log_softmax(second(x), dim=-1)
loss = F.kl_div(p, q, reduction="batchmean") + F.kl_div(q, p, reduction="batchmean")
loss.backward()
