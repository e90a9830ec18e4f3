"""The parameters of optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def iter_parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters of all groups of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def list_held(optimizers: Iterable[Optimizer]) -> set[int]:
    """Return the ids of the parameters that optimizers have."""
    return {id(p) for optimizer in list(optimizers) for p in iter_parameters(optimizer)}
