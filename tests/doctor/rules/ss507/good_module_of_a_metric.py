# expect: nothing
import torch
from torch import nn


class Perplexity(nn.Module):
    def forward(self, logits, targets):
        return -(targets * torch.log(logits.softmax(-1))).sum(-1).mean()


class SoftLoss(nn.Module):
    def forward(self, logits, targets):
        return -(targets * torch.log(logits.softmax(-1) + 1e-8)).sum(-1).mean()
