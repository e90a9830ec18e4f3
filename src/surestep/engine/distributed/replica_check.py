"""Compares, bit for bit, the copies that ranks have of the same parameters."""

import json
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.rank_status import format_ranks
from surestep.engine.distributed.shards import is_sharded

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def find_mismatched(world: Communicator, model: nn.Module) -> dict[str, str]:
    """Return which parameters differ between ranks that have the same shard, and on which ranks.

    This takes one pass over the parameters and one read of the device. Each rank sends one hash for
    its shard of the model, and more only if there is a difference.
    """
    own = _checksums(model)
    hashes: dict[str, Any] = {}
    for key, value in own.items():
        shard = key.partition("/")[0]
        hashes.setdefault(shard, blake2b(digest_size=8)).update(f"{key}={value},".encode())
    if not _find_odd(world, {shard: made.hexdigest() for shard, made in hashes.items()}):
        return {}
    found: dict[str, set[int]] = {}
    for key, ranks in _find_odd(world, own).items():
        found.setdefault(key.partition("/")[2], set()).update(ranks)
    return {name: format_ranks(ranks) for name, ranks in found.items()}


def _find_odd(world: Communicator, own: Mapping[str, object]) -> dict[str, list[int]]:
    """Return by key the ranks whose value is not that of most ranks that have the key."""
    gathered = [json.loads(text) for text in world.all_gather_text(json.dumps(own))]
    odd = {}
    for key in dict.fromkeys(key for values in gathered for key in values):
        by_rank = {rank: values[key] for rank, values in enumerate(gathered) if key in values}
        [(most, _)] = Counter(by_rank.values()).most_common(1)
        if ranks := [rank for rank, value in by_rank.items() if value != most]:
            odd[key] = ranks
    return odd


def _checksums(model: nn.Module) -> dict[str, int]:
    """Return a sum over the bits of each parameter, by SHARD/NAME; ranks have copies of a shard.

    The sum of integers does not depend on the order. Parameters without values, as on the meta
    device, are omitted.
    """
    keys, sums = [], []
    for name, parameter in model.named_parameters():
        if is_lazy(parameter) or parameter.is_meta:
            continue
        shard, local = "", parameter.detach()
        if is_sharded(local):
            axes = zip(local.device_mesh.get_coordinate() or (), local.placements, strict=False)
            shard = ".".join(str(at) for at, placement in axes if placement.is_shard())
            local = local.to_local()
        if local.is_complex():
            local = torch.view_as_real(local)
        bits = local.contiguous().view(_BITS[local.element_size()])
        keys.append(f"{shard}/{name}")
        sums.append(bits.sum(dtype=torch.int64))
    values = torch.stack([total.to(sums[0].device) for total in sums]).tolist() if sums else []
    return dict(zip(keys, values, strict=True))
