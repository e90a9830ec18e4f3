# expect: SS215 line 18; watch: SS215 line 30
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x))


def freeze(model: Tagger) -> None:
    for layer in (model.words,):
        layer.requires_grad = False


torch.manual_seed(0)
tagger = Tagger()
freeze(tagger)
optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    y = torch.randint(3, (8, 5))
    logits = tagger(torch.randint(20, (8, 5))).transpose(1, 2)
    nn.functional.cross_entropy(logits, y).backward()
    optimizer.step()
