# expect: SS512 line 17, SS512 line 18; watch: SS512 line 17
import torch
from torch import nn
from torch.nn import functional as F


def embed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1)


torch.manual_seed(0)
model = nn.Linear(4, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    x = torch.randn(8, 4)
    anchor, positive, negative = embed(model, x), embed(model, x), embed(model, x.flip(0))
    loss = F.mse_loss(input=positive, target=positive) - anchor.std(0).mean()
    loss = loss + F.triplet_margin_loss(anchor, positive, positive)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
