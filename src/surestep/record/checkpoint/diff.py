"""What changed between two checkpoints: how far they are, their options, and each tensor."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.shards import TensorMeta
from surestep.record.checkpoint.manifest import RECORD, TensorEntry
from surestep.record.checkpoint.reader import CheckpointReader


class ChangedValue(NamedTuple):
    """A value of the record that differs; None where there is none."""

    name: str
    before: Any
    now: Any


class ChangedTensor(NamedTuple):
    """A tensor whose elements differ.

    Attributes:
        kind: of the tensor, as the manifests have it: model, optimizer, declared and so on.
        name: of the tensor.
        elements: how many there are.
        changed: how many of them are not bit for bit the same.
        largest: the largest difference; nan where a value is not a number.
        relative: the norm of the difference as a share of the norm before.
    """

    kind: str
    name: str
    elements: int
    changed: int
    largest: float
    relative: float


class ReshapedTensor(NamedTuple):
    """A tensor that has another shape or type."""

    kind: str
    name: str
    before: str
    now: str


class MissingTensor(NamedTuple):
    """A tensor that only one of the two has."""

    kind: str
    name: str
    side: str


@dataclass(frozen=True)
class CheckpointDiff:
    """What changed between two checkpoints; tensors with the largest relative change first.

    Attributes:
        values: of the record.
        only: tensors that one of them lacks.
        reshaped: tensors of another shape or type.
        moved: tensors with other elements.
        equal: how many tensors are bit for bit the same.
    """

    values: list[ChangedValue]
    only: list[MissingTensor] = field(default_factory=list)
    reshaped: list[ReshapedTensor] = field(default_factory=list)
    moved: list[ChangedTensor] = field(default_factory=list)
    equal: int = 0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.values or self.only or self.reshaped or self.moved)


def differences(before: CheckpointReader, now: CheckpointReader) -> CheckpointDiff:
    """Compare two checkpoints that were verified, each tensor by name and bit for bit.

    Raises:
        CheckpointError: a tensor is not what the manifest says, or a record no record.
    """
    try:
        found = CheckpointDiff(list(_values(before.record, now.record)))
    except (AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{before.path} and {now.path} cannot be compared: {RECORD}: {error!r}."
        ) from error
    equal = 0
    for kind in sorted(before.manifest.tensors.keys() | now.manifest.tensors.keys()):
        old, new = _stored(before, kind), _stored(now, kind)
        found.only.extend(
            MissingTensor(kind, name, "A") for name in sorted(old.keys() - new.keys())
        )
        found.only.extend(
            MissingTensor(kind, name, "B") for name in sorted(new.keys() - old.keys())
        )
        both = sorted(old.keys() & new.keys())
        if not both:
            continue
        with before.open_tensors(kind) as read_old, now.open_tensors(kind) as read_new:
            for name in both:
                a, b = old[name].described, new[name].described
                if a != b:
                    found.reshaped.append(ReshapedTensor(kind, name, _shown(a), _shown(b)))
                elif moved := _moved(kind, name, read_old(name, None), read_new(name, None)):
                    found.moved.append(moved)
                else:
                    equal += 1
    found.moved.sort(key=lambda each: -_rank(each.relative))
    return replace(found, equal=equal)


def _stored(opened: CheckpointReader, kind: str) -> Mapping[str, TensorEntry]:
    return opened.manifest.tensors.get(kind, {})


def _shown(tensor: TensorMeta) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _rank(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _moved(kind: str, name: str, a: Tensor, b: Tensor) -> ChangedTensor | None:
    """Return how far a tensor moved; None where every bit is the same, of nan and -0 too."""
    changed = int((_bytes(a) != _bytes(b)).any(dim=1).sum())
    if not changed:
        return None
    wide = torch.complex128 if a.is_complex() else torch.float64
    old, new = a.to(wide), b.to(wide)
    moved = (new - old).abs()
    norm, whole = float(moved.norm()), float(old.norm())
    relative = norm / whole if whole else math.inf if norm else 0.0
    return ChangedTensor(kind, name, a.numel(), changed, float(moved.max()), relative)


def _bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of each element as a row."""
    return tensor.reshape(-1, 1).view(torch.uint8)


def _values(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ChangedValue]:
    """Yield what differs in the records, by the path to it."""
    for part in {**before, **now}:
        if part != "optimizers":
            yield from _within(part, before.get(part), now.get(part))
    yield from _within("optimizer", _optimizers(before), _optimizers(now))


def _optimizers(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optimizers with their groups by name or number."""
    found = {}
    for called, each in record["optimizers"].items():
        groups = {
            str(group.get("options", {}).get("name", number)): {
                **group.get("options", {}),
                "built": group.get("built"),
                "parameters": group.get("names"),
            }
            for number, group in enumerate(each.get("groups", []))
        }
        found[called] = {"class": each.get("class"), "groups": groups, "values": each.get("values")}
    return found


def _within(name: str, before: Any, now: Any) -> Iterator[ChangedValue]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from _within(f"{name}.{key}", before.get(key), now.get(key))
    elif before != now or type(before) is not type(now):
        yield ChangedValue(name, before, now)
