# expect: SS507 line 8; watch: nothing
import torch
from torch import nn


class SoftLoss(nn.Module):
    def forward(self, logits, targets):
        return -(targets * torch.log(logits.softmax(-1))).sum(-1).mean()
