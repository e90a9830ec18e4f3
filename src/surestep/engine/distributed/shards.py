"""What one rank holds of each tensor, so that many ranks can save and load a State together.

A copy in each process (DDP), and a process alone, hold everything; the first rank writes. Of a
DTensor (FSDP) each rank holds a box. A way that keeps weights and optimizer state neither in the
model nor in the optimizer says through a `Keeper` what it has.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

from surestep.base.errors import ParallelError

if TYPE_CHECKING:  # this is read by commands that start without torch
    import torch
    from torch import Tensor, nn
    from torch.distributed.tensor import DTensor

Sizes = tuple[int, ...]


class TensorShard(NamedTuple):
    """A tensor as this rank has it.

    Attributes:
        whole: the shape of the whole tensor.
        offset: where the local box begins in it.
        local: the box, which may be empty.
        writes: whether this rank is the one that writes the box; of copies only one is.
    """

    full_shape: Sizes
    offset: Sizes
    local: Tensor
    writes: bool


class TensorMeta(NamedTuple):
    """A tensor without its values."""

    shape: Sizes
    dtype: torch.dtype


class ShardedStateProvider(Protocol):
    """Where a way keeps the parameters and the optimizer state that model and optimizer lack.

    The names are the model's own, and all that is said here is of whole tensors, whatever is kept.
    All ranks call each of these, and take from each iterator to its end: to yield may mean to
    gather. What was yielded is copied before the next is asked for, so one whole tensor at a time
    need be there, and of a tensor that is gathered on all ranks a single rank writes.
    """

    def described(self) -> Mapping[str, TensorMeta]:
        """Return what `weights` yields, without gathering anything."""
        ...

    def weights(self) -> Iterator[tuple[str, TensorShard]]:
        """Yield the parameters by name; of tied ones the first name."""
        ...

    def put_weight(self, name: str, whole: Tensor) -> None:
        """Give a parameter its value, which each rank has whole, on the host."""
        ...

    def groups(self, optimizer: str) -> Sequence[Sequence[str]]:
        """Return the names of the parameters in each group of the optimizer of a name."""
        ...

    def slots(self, optimizer: str) -> Iterator[tuple[str, str, TensorShard]]:
        """Yield an optimizer's state as (parameter, slot, piece), counts of steps included."""
        ...

    def put_slots(self, optimizer: str, parameter: str, slots: Mapping[str, Tensor]) -> None:
        """Give a parameter's optimizer state its values, which each rank has whole, on the host."""
        ...


def local_shard(tensor: Tensor, *, is_first: bool) -> TensorShard:
    """Return what this rank holds of a tensor.

    Args:
        tensor: of the model, an optimizer or an average.
        is_first: this is the first rank, which writes what all of them hold.

    Raises:
        ParallelError: it is cut in a way that is no box.
    """
    whole = tuple(tensor.shape)
    if is_sharded(tensor):
        offset, shape, is_first_copy = shard_extent(tensor)
        local: Tensor = tensor.to_local().detach()
        assert tuple(local.shape) == shape, f"{tuple(local.shape)} of {whole}"
        writes = is_first_copy and bool(local.numel()) if tensor.numel() else is_first
        return TensorShard(whole, offset, local, writes)
    return TensorShard(whole, tuple(0 for _ in whole), tensor, is_first)


def shard_extent(tensor: DTensor) -> tuple[Sizes, Sizes, bool]:
    """Return where this rank's box begins, its shape, and whether it is the first copy of it.

    A dimension is cut as `torch.chunk` does it, once for each dimension of the mesh that cuts it:
    the last boxes may be smaller, or empty.

    Raises:
        ParallelError: it is cut in a way that is no box.
    """
    mesh = tensor.device_mesh
    at = mesh.get_coordinate()
    assert at is not None, "this rank is not in the mesh"
    offset, shape, is_first_copy = [0] * tensor.dim(), list(tensor.shape), True
    for axis, placement in enumerate(tensor.placements):
        if type(placement).__name__ == "Shard":
            dim: int = placement.dim  # type: ignore[attr-defined]
            length = -(-shape[dim] // mesh.size(axis))
            begin = min(shape[dim], length * at[axis])
            offset[dim] += begin
            shape[dim] = min(length, shape[dim] - begin)
        elif placement.is_replicate():
            is_first_copy &= at[axis] == 0
        else:
            raise ParallelError(
                f"A tensor of {tuple(tensor.shape)} is laid out as {placement} over the ranks, "
                "which is no box of it and cannot be saved or loaded. Cut each dimension once, or "
                "leave out what cuts it a second time."
            )
    return tuple(offset), tuple(shape), is_first_copy


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Say whether a tensor is laid out over ranks by torch.

    Without import: it takes half a second, and who has such a tensor has imported it.
    """
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_model_sharded(model: nn.Module) -> bool:
    """Say whether a model holds parts of its parameters: torch's (FSDP) or DeepSpeed's (ZeRO 3)."""
    return any(is_sharded(each) or hasattr(each, "ds_tensor") for each in model.parameters())


def to_local(value: Any) -> Any:
    """Return this rank's box of a tensor that is cut, which is no copy; anything else as it is."""
    cut: Any = value
    return cut.detach().to_local() if is_sharded(value) else value


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor; where ranks share it, all of them must ask for it together.

    Parts that lie on the host travel from the device: NCCL does not reach them.
    """
    if not is_sharded(tensor):
        return tensor
    parts: Any = tensor
    whole: Tensor = parts.to(parts.device_mesh.device_type).full_tensor()
    return whole


def distribute_like(like: DTensor, local: Tensor) -> DTensor:
    """Return a tensor laid out as another one, with this rank's box of it; nothing is sent."""
    from torch.distributed.tensor import DTensor

    placed: DTensor = DTensor.from_local(
        local.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return placed
