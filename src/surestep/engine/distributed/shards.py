"""The shard of each tensor on one rank, so that several ranks can save and load a State together.

A single process, and each process of DDP, has full tensors; rank 0 writes them. Of a DTensor (FSDP)
each rank has one box. A strategy that keeps weights and optimizer state neither in the model nor in
the optimizer has a `ShardedStateProvider`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

from surestep.base.errors import ParallelError

if TYPE_CHECKING:  # commands that start without torch import this
    import torch
    from torch import Tensor, nn
    from torch.distributed.tensor import DTensor

Sizes = tuple[int, ...]


class TensorShard(NamedTuple):
    """The shard of a tensor on this rank.

    Attributes:
        full_shape: the shape of the full tensor.
        offset: where the shard begins in it.
        local: the shard, which may be empty.
        writes: whether this rank writes the shard; of copies, only one is written.
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
    """Gives access to parameters and optimizer state that are not in the model and the optimizer.

    Names are those of the model, and shapes those of full tensors. All ranks call each method, and
    exhaust each iterator: yielding may gather. The caller copies each tensor before it asks for the
    next, so one full tensor exists at a time, and one rank writes it.
    """

    def described(self) -> Mapping[str, TensorMeta]:
        """Return what `weights` yields, without gathering anything."""
        ...

    def weights(self) -> Iterator[tuple[str, TensorShard]]:
        """Yield the parameters by name; of tied ones the first name."""
        ...

    def put_weight(self, name: str, whole: Tensor) -> None:
        """Set a parameter from its full value on the host, which each rank has."""
        ...

    def groups(self, optimizer: str) -> Sequence[Sequence[str]]:
        """Return the names of the parameters in each group of an optimizer."""
        ...

    def slots(self, optimizer: str) -> Iterator[tuple[str, str, TensorShard]]:
        """Yield an optimizer's state as (parameter, slot, shard), step counts included."""
        ...

    def put_slots(self, optimizer: str, parameter: str, slots: Mapping[str, Tensor]) -> None:
        """Set a parameter's optimizer state from full values on the host, which each rank has."""
        ...


def local_shard(tensor: Tensor, *, is_first: bool) -> TensorShard:
    """Return the shard of a tensor on this rank.

    Args:
        tensor: of the model, an optimizer or an average.
        is_first: this is rank 0, which writes what all of them have.

    Raises:
        ParallelError: the shard is not a box.
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

    A dimension is split as by `torch.chunk`, once for each mesh dimension that splits it: the last
    boxes may be smaller, or empty.

    Raises:
        ParallelError: the shard is not a box.
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
                f"A tensor of {tuple(tensor.shape)} has the placement {placement} over the ranks, "
                "whose shards are not boxes and cannot be saved or loaded. Shard each dimension "
                "once."
            )
    return tuple(offset), tuple(shape), is_first_copy


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Return whether a tensor is a DTensor, without its import, which takes half a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_model_sharded(model: nn.Module) -> bool:
    """Return whether a model has shards of its parameters, by FSDP or by ZeRO 3."""
    return any(
        is_sharded(parameter) or hasattr(parameter, "ds_tensor") for parameter in model.parameters()
    )


def to_local(value: Any) -> Any:
    """Return this rank's shard of a DTensor, not copied; any other value unchanged."""
    cut: Any = value
    return cut.detach().to_local() if is_sharded(value) else value


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor; if it is sharded, all ranks must call this together.

    Shards on the host are sent from the device, since NCCL cannot reach them.
    """
    if not is_sharded(tensor):
        return tensor
    parts: Any = tensor
    whole: Tensor = parts.to(parts.device_mesh.device_type).full_tensor()
    return whole


def distribute_like(like: DTensor, local: Tensor) -> DTensor:
    """Return a DTensor with the placement of another one and this rank's shard; nothing is sent."""
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
