"""Compares two runs bit for bit, and names the first step and tensor that differ.

Bits are compared, not values: a NaN is equal to a NaN with the same bits, and 0.0 differs from
-0.0, since 1 / 0.0 does. docs/decisions/0069 has the reasons.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from surestep.engine.losses.base import HALF
from surestep.engine.state.state import State
from surestep.laws.record import KINDS, VALUE, Digest, Place, RunRecord, StepRecord, record_state
from surestep.record.checkpoint.diff import compare_tensors

Recorder = Callable[[Place | None], RunRecord]
# Of the largest magnitude of a tensor, in steps of its precision. Kernels that add in a different
# order differed by 1 to 100 in sums of 64 to 65,536 terms (docs/decisions/0069); 16-bit results
# are rounded once, from a sum in fp32.
_ROUNDING, _ROUNDING_OF_HALF = 128, 4
_FIRST, _SECOND = "the first run", "the second run"


@dataclass(frozen=True)
class Difference:
    """The first value of two runs that is not bitwise identical.

    Attributes:
        place: where it is.
        first: its digest in the first run; None if this run lacks it.
        second: the same of the second run.
        elements: how many it has; None if they were not kept, or cannot be compared.
        changed: how many of them differ.
        largest: the largest difference; NaN if an element that differs is NaN or infinite.
        is_rounding: the difference is as small as that of sums in a different order.
        relative: the largest difference, divided by the largest magnitude of the first run.
        unstable: the run that computed different numbers when it was repeated; None if neither did.
    """

    place: Place
    first: Digest | None
    second: Digest | None
    elements: int | None = None
    changed: int | None = None
    largest: float | None = None
    is_rounding: bool | None = None
    relative: float | None = None
    unstable: str | None = None

    def __str__(self) -> str:
        step, kind, name = self.place
        where = f"step {step}" if step else "the start"
        if self.unstable is not None:
            return (
                f"At {where}, {kind} ({name}) of {self.unstable} differ from those of the same run "
                "repeated, so it has no one result to compare."
            )
        return f"At {where}, {kind} ({name}) differ: {self._describe()}."

    def _describe(self) -> str:
        if self.first is None or self.second is None:
            return f"only {_FIRST if self.second is None else _SECOND} has them"
        if VALUE in (self.first.dtype, self.second.dtype):
            return f"{_shown(self.first)} and {_shown(self.second)}"
        if self.first[:2] != self.second[:2]:
            return f"they are {_shown(self.first)} and {_shown(self.second)}"
        if self.changed is None:
            return "not bitwise identical"
        size = "within" if self.is_rounding else "more than"
        return (
            f"{self.changed} of {self.elements} elements, by at most {self.largest:.3g}, "
            f"{size} rounding"
        )


def _shown(digest: Digest) -> str:
    return digest.bits if digest.dtype == VALUE else f"{digest.dtype} {digest.shape}"


def compare_records(first: RunRecord, second: RunRecord) -> Difference | None:
    """Return the first difference of two runs in the order of causes; None if there is none.

    Steps are compared in order, and in each step the kinds of `KINDS`. If both records have kept
    the tensor that differs, its elements are compared.
    """
    for one, other in zip_longest(first.steps, second.steps):
        found = next(_find_differences(one, other), None)
        if found is not None:
            kept = first.kept, second.kept
            is_kept = first.place == second.place == found.place
            return compare_elements(found, *kept) if is_kept else found
    return None


def _find_differences(first: StepRecord | None, second: StepRecord | None) -> Iterator[Difference]:
    if first is None or second is None or first.step != second.step:
        known = first or second
        assert known is not None
        place = Place(known.step, "steps", "number")
        yield Difference(place, _number_of(first), _number_of(second))
        return
    for kind in KINDS:
        one, other = first.values.get(kind, {}), second.values.get(kind, {})
        for name in one | other:
            a, b = one.get(name), other.get(name)
            # The first step of a process seeds numpy's and Python's generators to see whether
            # anything draws from them; later steps do only if something did.
            is_unseeded = kind == "random state" and None in (a, b)
            if a != b and not is_unseeded:
                yield Difference(Place(first.step, kind, name), a, b)


def _number_of(step: StepRecord | None) -> Digest | None:
    return None if step is None else Digest(VALUE, (), str(step.step))


def compare_elements(found: Difference, a: Tensor | None, b: Tensor | None) -> Difference:
    """Add how many elements differ and how far, if the tensors can be compared."""
    if a is None or b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
        return found
    scale = float(a.abs().max()) if a.numel() and a.dtype != torch.bool else 0.0
    changed = compare_tensors(found.place.kind, found.place.name, a, b)
    assert changed is not None
    return Difference(
        *(found.place, found.first, found.second),
        elements=changed.elements,
        changed=changed.changed,
        largest=changed.largest,
        is_rounding=_is_rounding(a, b, changed.largest),
        relative=changed.largest / scale if scale else None,
    )


def _is_rounding(a: Tensor, b: Tensor, largest: float) -> bool:
    """Return whether a difference is as small as that of sums in a different order.

    It is compared with the largest finite magnitude of the tensor: the terms of a sum may be
    larger than the sum.
    """
    if not (a.is_floating_point() or a.is_complex()):
        return False
    steps = _ROUNDING_OF_HALF if a.dtype in HALF else _ROUNDING
    magnitudes = torch.cat([a.reshape(-1), b.reshape(-1)]).abs().double()
    scale = float(magnitudes.where(magnitudes.isfinite(), 0).max())
    return largest <= steps * torch.finfo(a.dtype).eps * scale


def compare_runs(first: Recorder, second: Recorder) -> Difference | None:
    """Return the first difference of two runs, with its elements; None if they are identical.

    Only if they differ, both are repeated from the start, and keep the tensor that differs. A run
    that then differs from itself is named.

    Args:
        first: trains from the start each time it is called, and returns what `record_steps`
            recorded. Its argument says which tensor to keep, if any.
        second: the same of the second run.
    """
    records = first(None), second(None)
    found = compare_records(*records)
    if found is None or found.place.kind == "steps":
        return found
    again = first(found.place), second(found.place)
    for name, before, now in zip((_FIRST, _SECOND), records, again, strict=True):
        changed = compare_records(before, now)
        if changed is not None:
            return Difference(changed.place, changed.first, changed.second, unstable=name)
    return compare_records(*again)


def compare_states(first: State, second: State) -> Difference | None:
    """Return the first difference of two states, with its elements; None if they are identical."""
    return compare_runs(
        lambda place: record_state(first, keep=place),
        lambda place: record_state(second, keep=place),
    )
