# expect: nothing
import torch
from torch import nn


class TokenLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()

    def forward(self, logits, labels, is_probability=False):
        if not self.training:
            logits = logits.softmax(-1)
        if is_probability:
            return nn.functional.nll_loss(logits.log(), labels)
        return self.loss(logits, labels)


print(TokenLoss()(torch.randn(2, 4), torch.tensor([0, 1])))
