# expect: SS504 line 9, SS507 line 9; watch: SS504 line 9
import torch
import torch.nn.functional as F

student, teacher = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
x = torch.randn(8, 4)
with torch.no_grad():
    soft = F.softmax(teacher(x), dim=1)
loss = F.kl_div(student(x).log_softmax(1), torch.log(soft), reduction="batchmean")
loss.backward()
