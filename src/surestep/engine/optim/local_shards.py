"""Let an optimizer move the parts that a rank holds as plain tensors.

What moves each number by itself computes the same on parts as on the whole. Through torch's
DTensor it would take Python for every tensor, and its fused SGD and Adagrad do not take one.
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
    """Let the groups and the state of an optimizer be of this rank's parts, within."""
    state, params = optimizer.state, [group["params"] for group in optimizer.param_groups]
    parts = {id(each): _part(each) for group in params for each in group}
    optimizer.state = defaultdict(dict)
    for whole, slots in state.items():
        local = {name: to_local(value) for name, value in slots.items()}
        optimizer.state[parts[id(whole)]] = local
    for group, held in zip(optimizer.param_groups, params, strict=True):
        group["params"] = [parts[id(each)] for each in held]
    try:
        yield
    finally:
        moved, optimizer.state = optimizer.state, state
        for group, held in zip(optimizer.param_groups, params, strict=True):
            group["params"] = held
            for whole in held:
                slots = moved.get(parts[id(whole)], {})
                _take_over(state, whole, slots)


def _part(whole: nn.Parameter) -> nn.Parameter:
    part = nn.Parameter(to_local(whole), requires_grad=whole.requires_grad)
    part.grad = to_local(whole.grad)
    return part


def _take_over(state: Any, whole: nn.Parameter, slots: dict[str, Any]) -> None:
    """Take over the slots that are new, or were put in place of others, as parts of a whole."""
    cut: Any = whole.detach()
    for name, value in slots.items():
        known = state[whole].get(name)
        if known is value or (is_sharded(known) and to_local(known).data_ptr() == value.data_ptr()):
            continue
        is_box = isinstance(value, Tensor) and value.shape == cut.to_local().shape
        state[whole][name] = distribute_like(cut, value) if is_box else value
