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
from torch.distributed.tensor import DTensor


@contextmanager
def locally(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Let the groups and the state of an optimizer be of this rank's parts, within."""
    state, params = optimizer.state, [group["params"] for group in optimizer.param_groups]
    parts = {id(each): _part(each) for group in params for each in group}
    optimizer.state = defaultdict(dict)
    for whole, slots in state.items():
        local = {name: part_of(value) for name, value in slots.items()}
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


def part_of(value: Any) -> Any:
    """Return this rank's part of a tensor that is cut; anything else as it is."""
    if not isinstance(value, DTensor):
        return value
    whole: Any = value.data
    return whole.to_local()


def _part(whole: nn.Parameter) -> nn.Parameter:
    part = nn.Parameter(part_of(whole), requires_grad=whole.requires_grad)
    part.grad = part_of(whole.grad)
    return part


def _take_over(state: Any, whole: nn.Parameter, slots: dict[str, Any]) -> None:
    """Take over the slots that are new, or were put in place of others, as parts of a whole."""
    cut = whole.data
    assert isinstance(cut, DTensor)
    for name, value in slots.items():
        known = state[whole].get(name)
        if part_of(known) is value or (isinstance(known, DTensor) and _same(known, value)):
            continue
        is_cut = isinstance(value, Tensor) and value.shape == cut.to_local().shape
        state[whole][name] = _as(cut, value) if is_cut else value


def _same(known: DTensor, value: Tensor) -> bool:
    return known.to_local().data_ptr() == value.data_ptr()


def _as(cut: DTensor, part: Tensor) -> DTensor:
    made: DTensor = DTensor.from_local(
        part,
        cut.device_mesh,
        cut.placements,
        run_check=False,
        shape=cut.shape,
        stride=cut.stride(),
    )
    return made
