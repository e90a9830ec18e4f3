# expect: SS504 line 15
import torch
from torch import nn


class Distiller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(4, 3), nn.Linear(4, 3)
        self.criterion = nn.KLDivLoss(reduction="batchmean")

    def forward(self, x):
        p = self.teacher(x).softmax(dim=-1).detach()
        q = self.student(x).softmax(dim=-1)
        return self.criterion(q, p)


Distiller()(torch.randn(8, 4)).backward()
