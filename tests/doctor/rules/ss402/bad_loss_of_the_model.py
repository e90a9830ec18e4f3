# expect: nothing; watch: SS402 line 22
import torch
import torch.nn.functional as F
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x, targets=None):
        logits = self.head(F.dropout(x, 0.1, training=self.training))
        loss = None if targets is None else F.cross_entropy(logits, targets)
        return logits, loss


@torch.no_grad()
def estimate_loss():
    losses = torch.zeros(4)
    for i in range(4):
        _, loss = model(torch.randn(8, 4), torch.randint(3, (8,)))
        losses[i] = loss.item()
    return losses.mean()


model = Classifier()
model.train()
print(estimate_loss())
