"""Read some values of a tensor, by which a change is noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def read_part(tensor: Tensor, most: int) -> Tensor:
    """Return the first values of a tensor, at most so many.

    They are a view without a graph, so they change with the tensor.
    """
    values = tensor.detach()
    if values.is_contiguous():
        return values.view(-1)[:most]
    while values.dim() > 1:
        values = values[0]
    return values[:most]
