"""Read some values of a tensor: to notice a change, or to see what they may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor


_MOST_VALUES = 1_000_000  # of a tensor that are checked
_ROUNDING = 1e-3


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Return whether a value of the script is a tensor.

    The attributes of other objects are not read: any of them may raise an error.
    """
    import torch

    return isinstance(value, torch.Tensor)


def read_part(tensor: Tensor, most: int) -> Tensor:
    """Return the first values of a tensor, at most so many; of a sharded one, of its own shard.

    They are a view without a graph, so they change with the tensor.
    """
    values = tensor.detach()
    if hasattr(values, "to_local"):  # a DTensor, of FSDP
        values = values.to_local()
    if values.is_contiguous():
        return values.view(-1)[:most]
    while values.dim() > 1:
        values = values[0]
    return values[:most]


def may_be_probabilities(tensor: Tensor, dim: int, *, is_log: bool = False) -> bool:
    """Return whether the values of a tensor of the CPU are at least 0 and sum to 1 over `dim`.

    It is False for a large tensor, and for one of another device, for which reading would wait.

    Args:
        tensor: of the script.
        dim: of the classes.
        is_log: whether the values are logarithms.
    """
    is_small = tensor.device.type == "cpu" and 0 < tensor.numel() <= _MOST_VALUES
    if not is_small or not tensor.is_floating_point() or tensor.dim() < 2 or tensor.shape[dim] < 2:
        return False
    values = tensor.exp() if is_log else tensor
    is_one = (values.sum(dim) - 1).abs().amax() < _ROUNDING
    return bool(is_one) and bool(values.amin() >= 0)
