# expect: nothing
import torch
from torch import nn


class Scorer(nn.Module):
    def __init__(self, *, with_sigmoid=True) -> None:
        super().__init__()
        self.out, self.with_sigmoid = nn.Linear(4, 1), with_sigmoid

    def forward(self, x):
        logits = self.out(x)
        return torch.sigmoid(logits) if self.with_sigmoid else logits


x, y = torch.randn(8, 4), torch.randint(2, (8, 1)).float()
nn.BCELoss()(Scorer()(x), y).backward()
nn.BCEWithLogitsLoss()(Scorer(with_sigmoid=False)(x), y).backward()
