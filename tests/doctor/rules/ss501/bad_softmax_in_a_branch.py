# expect: SS501 line 16
import torch
from torch import nn


class TokenLoss(nn.Module):
    def __init__(self, tokens=None):
        super().__init__()
        self.loss = nn.CrossEntropyLoss()
        self.tokens = tokens

    def forward(self, logits, labels):
        if self.tokens is not None:
            logits = logits[:, self.tokens].softmax(-1)
            labels = labels % 2
        return self.loss(logits, labels)


print(TokenLoss([0, 1])(torch.randn(2, 4), torch.tensor([0, 1])))
