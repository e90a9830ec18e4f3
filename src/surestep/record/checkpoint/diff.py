"""Compare two checkpoints: values in state.json, and each tensor bit for bit."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.shards import TensorMeta
from surestep.record.checkpoint.manifest import RECORD
from surestep.record.checkpoint.reader import CheckpointReader


class ChangedValue(NamedTuple):
    """A value of state.json that differs; None if one side lacks it."""

    name: str
    before: Any
    now: Any


class ChangedTensor(NamedTuple):
    """A tensor whose elements differ.

    Attributes:
        kind: model, optimizer, callback_states and so on.
        name: of the tensor.
        elements: how many it has.
        changed: how many of them are not bitwise identical.
        largest: the largest difference; NaN if an element that differs is NaN or infinite.
        relative: the norm of the difference divided by the norm before.
    """

    kind: str
    name: str
    elements: int
    changed: int
    largest: float
    relative: float


class UnmatchedTensor(NamedTuple):
    """A tensor that has another dtype or shape, which `before` and `now` name; None lacks it."""

    kind: str
    name: str
    before: str | None
    now: str | None


@dataclass
class CheckpointDiff:
    """What changed between two checkpoints.

    Attributes:
        values: of state.json.
        unmatched: tensors that cannot be compared.
        changed: tensors with other elements, those with the largest relative change first.
        equal: how many tensors are bitwise identical.
    """

    values: list[ChangedValue]
    unmatched: list[UnmatchedTensor] = field(default_factory=list)
    changed: list[ChangedTensor] = field(default_factory=list)
    equal: int = 0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.values or self.unmatched or self.changed)


def differences(before: CheckpointReader, now: CheckpointReader) -> CheckpointDiff:
    """Compare two verified checkpoints, of which one pair of tensors is in memory at a time."""
    try:
        found = CheckpointDiff(list(_changed_values(before.record, now.record)))
    except RecursionError as error:
        raise CheckpointError(
            f"{before.path} and {now.path} cannot be compared: {RECORD}: {error!r}."
        ) from error
    for kind in sorted(before.manifest.tensors.keys() | now.manifest.tensors.keys()):
        old, new = (side.manifest.tensors.get(kind, {}) for side in (before, now))
        comparable = []
        for name in sorted(old.keys() | new.keys()):
            a, b = (side[name].described if name in side else None for side in (old, new))
            if a == b:
                comparable.append(name)
            else:
                found.unmatched.append(UnmatchedTensor(kind, name, _shown(a), _shown(b)))
        if not comparable:
            continue
        with before.open_tensors(kind) as read_old, now.open_tensors(kind) as read_new:
            for name in comparable:
                changed = compare_tensors(kind, name, read_old(name, None), read_new(name, None))
                if changed is None:
                    found.equal += 1
                else:
                    found.changed.append(changed)
    found.changed.sort(key=lambda tensor: (not math.isnan(tensor.relative), -tensor.relative))
    return found


def _shown(tensor: TensorMeta | None) -> str | None:
    if tensor is None:
        return None
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def compare_tensors(kind: str, name: str, a: Tensor, b: Tensor) -> ChangedTensor | None:
    """Return how far a tensor changed; None if it is bitwise identical, NaN and -0 included.

    Args:
        kind: model, optimizer, callback_states and so on.
        name: of the tensor.
        a: the tensor before.
        b: the tensor now, of the same shape and dtype.
    """
    bytes_a, bytes_b = (tensor.reshape(-1, 1).view(torch.uint8) for tensor in (a, b))
    differ = (bytes_a != bytes_b).any(dim=1)
    changed = int(differ.sum())
    if not changed:
        return None
    wide = torch.complex128 if a.is_complex() else torch.float64
    old, new = (tensor.reshape(-1)[differ].to(wide) for tensor in (a, b))
    difference = (new - old).abs()
    norm, full = float(difference.norm()), float(a.to(wide).norm())
    relative = norm / full if full else math.inf if norm else 0.0
    return ChangedTensor(kind, name, a.numel(), changed, float(difference.max()), relative)


def _changed_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ChangedValue]:
    for part in before:
        if part != "optimizers":
            yield from _compare_values(part, before[part], now[part])
    yield from _compare_values("optimizer", _by_group(before), _by_group(now))


def _by_group(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optimizers with their groups by name or number."""
    found = {}
    for called, optimizer in record["optimizers"].items():
        groups = {}
        for number, group in enumerate(optimizer["groups"]):
            name = str(group["options"].get("name", number))
            groups[name] = {**group["options"], "parameters": group["names"]}
        found[called] = {**optimizer, "groups": groups}
    return found


def _compare_values(name: str, before: Any, now: Any) -> Iterator[ChangedValue]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from _compare_values(f"{name}.{key}", before.get(key), now.get(key))
    elif before != now or type(before) is not type(now):
        yield ChangedValue(name, before, now)
