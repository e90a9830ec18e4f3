# expect: nothing
import torch
import torch.nn.functional as F

teacher, student = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
x = torch.randn(8, 4)
with torch.no_grad():
    soft = F.softmax(teacher(x) / 2, dim=1)
F.cross_entropy(student(x) / 2, soft).backward()
