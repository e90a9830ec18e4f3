"""What the programs with losses share: a model with outputs of any shape, and data for it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.twice.compare import in_batches, weights

G = torch.Generator().manual_seed(23)
N = 29  # batches of 7, the last of one sample
X = torch.randn(N, 4, generator=G, dtype=torch.float64)
SIGNS = torch.randint(0, 2, (N,), generator=G).double() * 2 - 1
LABELS = torch.randint(0, 3, (N, 5), generator=G)
LABELS[torch.rand(N, 5, generator=G) < 0.4] = -100
LABELS[7:10], LABELS[-1] = -100, 1
NUMBERS = torch.rand(N, 3, generator=G, dtype=torch.float64)
PER_LABEL = torch.tensor([0.5, 2.0, 1.5], dtype=torch.float64)
Mean = Callable[[Any, Any], Tensor]


class Shaped(nn.Module):
    """A linear model whose outputs have a shape; with several parts, a tuple of them."""

    def __init__(self, *shape: int, parts: int = 1, last: Any = None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.linear = nn.Linear(4, parts * torch.Size(shape).numel()).double()
        self.shape, self.parts, self.last = shape, parts, last

    def forward(self, x: Tensor) -> Any:
        found = 2 * self.linear(x).reshape(len(x), self.parts, *self.shape)
        found = found if self.last is None else self.last(found)
        return found[:, 0] if self.parts == 1 else found.unbind(1)


def plain_training(net: nn.Module, mean: Mean, *data: Tensor, lr: float = 0.1) -> list[Any]:
    """Train on full batches of 7; return losses, weights and the mean over all samples."""
    optimizer, found = torch.optim.SGD(net.parameters(), lr=lr), []
    for _ in range(2):
        for x, y in in_batches(7, *data):
            optimizer.zero_grad()
            loss = mean(net(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    with torch.no_grad():
        return [found, weights(net), mean(net(data[0]), data[1]).item()]
