# expect: nothing; watch: SS505 line 12
import torch
import torch.nn.functional as F


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(4, 6)

    def loss(self, x: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.out(x), tags)


tagger = Tagger()
optimizer = torch.optim.SGD(tagger.parameters(), lr=0.1)
for _ in range(10):
    tags = (torch.rand(16, 6) < 0.5).float()
    optimizer.zero_grad()
    tagger.loss(torch.randn(16, 4), tags).backward()
    optimizer.step()
