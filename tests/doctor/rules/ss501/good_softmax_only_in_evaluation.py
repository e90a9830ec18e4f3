# expect: nothing
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        logits = self.out(x)
        return logits if self.training else logits.softmax(dim=1)


model = Classifier()
loss = nn.CrossEntropyLoss()(model(torch.randn(8, 4)), torch.randint(3, (8,)))
loss.backward()
