# expect: SS512 line 16; watch: nothing
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
student, teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
distill = nn.KLDivLoss(reduction="batchmean")
for _ in range(10):
    x, y, t = torch.randn(8, 4), torch.randint(3, (8,)), 2.0
    with torch.no_grad():
        soft = teacher(x)
    logits = student(x)
    loss = F.cross_entropy(logits, y)
    loss = loss + distill(F.log_softmax(logits / t, dim=1), F.softmax(logits / t, dim=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
