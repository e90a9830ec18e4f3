"""What one rank writes of a checkpoint that many write together: boxes of tensors."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from surestep.engine.distributed.shards import Sizes, TensorShard, is_sharded, local_shard
from surestep.engine.state.state import State


class ShardExtent(NamedTuple):
    """Where a tensor of this rank's lies in the whole one."""

    full_shape: Sizes
    offset: Sizes


Found = Mapping[str, Tensor | TensorShard]
Boxes = Mapping[str, Mapping[str, ShardExtent]]  # by kind, by name


def is_shared(state: State) -> bool:
    """Say whether no rank has all of the state, so that all of them write and read it."""
    return state.keeper is not None or any(map(is_sharded, state.model.parameters()))


def local_tensors(
    tensors: Mapping[str, Found], *, is_first: bool
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, ShardExtent]]]:
    """Return what this rank writes, by kind and name, and where each of it lies in the whole.

    The first rank has every kind, so that one in which there is nothing is there all the same.
    """
    own: dict[str, dict[str, Tensor]] = {}
    boxes: dict[str, dict[str, ShardExtent]] = {}
    for kind, named in tensors.items():
        pieces = {
            name: each if isinstance(each, TensorShard) else local_shard(each, is_first=is_first)
            for name, each in named.items()
        }
        written = {name: each for name, each in pieces.items() if each.writes}
        if written or is_first:
            own[kind] = {name: each.local for name, each in written.items()}
            boxes[kind] = {
                name: ShardExtent(each.full_shape, each.offset) for name, each in written.items()
            }
    return own, boxes


def collect_shards(pieces: Iterable[tuple[str, TensorShard]]) -> dict[str, TensorShard]:
    """Take what a keeper yields, one after another: what this rank writes goes to the host."""
    found = {}
    for name, piece in pieces:
        local = piece.local.detach()
        local = local.to("cpu", copy=True) if piece.writes else local.new_empty(0)
        found[name] = piece._replace(local=local)
    return found
