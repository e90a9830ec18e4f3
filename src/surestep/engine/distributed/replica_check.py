"""Compares, bit for bit, the copies that ranks have of the same parameters."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.rank_status import format_ranks

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def find_mismatched(world: Communicator, model: nn.Module) -> dict[str, str]:
    """Return which parameters differ between ranks that have the same shard, and on which ranks.

    This takes one pass over the parameters and one read of the device. Each rank sends one short
    text, and more only if there is a difference.
    """
    own = digests(model)
    parts: dict[str, list[Any]] = {}
    for name, (part, value) in own.items():
        parts.setdefault(part, []).append((name, value))
    short = {part: _short(values) for part, values in parts.items()}
    if not _disagree(world, short):
        return {}
    long = {f"{part}/{name}": str(value) for name, (part, value) in own.items()}
    gathered = [json.loads(text) for text in world.all_gather_text(json.dumps(long))]
    found: dict[str, list[int]] = {}
    for key in dict.fromkeys(key for values in gathered for key in values):
        values = {rank: one[key] for rank, one in enumerate(gathered) if key in one}
        known = list(values.values())
        most = max(known, key=known.count)
        odd = [rank for rank, value in values.items() if value != most]
        if odd:
            found.setdefault(key.partition("/")[2], []).extend(odd)
    return {name: format_ranks(set(ranks)) for name, ranks in found.items()}


def _disagree(world: Communicator, short: Mapping[str, str]) -> bool:
    """Return whether two ranks have different values for the same shard."""
    known: dict[str, str] = {}
    gathered = [json.loads(text) for text in world.all_gather_text(json.dumps(short))]
    return any(
        known.setdefault(part, value) != value
        for parts in gathered
        for part, value in parts.items()
    )


def digests(model: nn.Module) -> dict[str, tuple[str, int]]:
    """Return for each parameter which shard is here, and a sum over its bits.

    The sum of integers does not depend on the order. Parameters without values, as on the meta
    device, are omitted.
    """
    found = list(_held(model))
    if not found:
        return {}
    sums = torch.stack([_sum_of_bits(local).to(found[0][2].device) for _, _, local in found])
    return {
        name: (part, value) for (name, part, _), value in zip(found, sums.tolist(), strict=True)
    }


def _held(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            continue
        sharded: Any = parameter
        if hasattr(parameter, "placements"):  # a DTensor, whose import takes half a second
            yield name, _part(sharded), sharded.to_local()
        else:
            yield name, "", parameter


def _part(parameter: Any) -> str:
    """Return which shard of a DTensor is here; ranks with the same one have copies of it."""
    where = parameter.device_mesh.get_coordinate() or ()
    placed = zip(where, parameter.placements, strict=False)
    return ".".join(str(at) for at, how in placed if how.is_shard())


def _sum_of_bits(values: Tensor) -> Tensor:
    values = values.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    bits = values.contiguous().view(_BITS[values.element_size()])
    return bits.sum(dtype=torch.int64)


def _short(values: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()
