"""Run an optimizer on the plain tensors of a rank's shards.

An elementwise update is the same on shards as on full tensors. DTensor would run Python for every
tensor, and torch's fused SGD and Adagrad do not take DTensors.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.distributed.shards import distribute_like, is_sharded, to_local


@contextmanager
def local_shards(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Replace the groups and the state of an optimizer by this rank's shards."""
    state, params = optimizer.state, [group["params"] for group in optimizer.param_groups]
    shards = {id(parameter): _shard(parameter) for group in params for parameter in group}
    optimizer.state = defaultdict(dict)
    for full, slots in state.items():
        local = {name: to_local(value) for name, value in slots.items()}
        optimizer.state[shards[id(full)]] = local
    for group, params_before in zip(optimizer.param_groups, params, strict=True):
        group["params"] = [shards[id(parameter)] for parameter in params_before]
    try:
        yield
    finally:
        updated, optimizer.state = optimizer.state, state
        for group, params_before in zip(optimizer.param_groups, params, strict=True):
            group["params"] = params_before
            for full in params_before:
                slots = updated.get(shards[id(full)], {})
                _store(state, full, slots)


def _shard(full: nn.Parameter) -> nn.Parameter:
    shard = nn.Parameter(to_local(full), requires_grad=full.requires_grad)
    shard.grad = to_local(full.grad)
    return shard


def _store(state: Any, full: nn.Parameter, slots: dict[str, Any]) -> None:
    """Store new and replaced slots in the state of the full parameter, as shards."""
    like: Any = full.detach()
    for name, value in slots.items():
        known = state[full].get(name)
        if known is value or (is_sharded(known) and to_local(known).data_ptr() == value.data_ptr()):
            continue
        is_shard = isinstance(value, Tensor) and value.shape == like.to_local().shape
        state[full][name] = distribute_like(like, value) if is_shard else value
