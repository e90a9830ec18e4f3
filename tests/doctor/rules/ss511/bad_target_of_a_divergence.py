# expect: SS511 line 10
import torch
import torch.nn.functional as F

teacher, student = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
x = torch.randn(8, 4)
with torch.no_grad():
    logits = teacher(x)
soft = F.softmax(logits / 2, dim=0)
F.kl_div(F.log_softmax(student(x) / 2, dim=-1), soft, reduction="batchmean").backward()
