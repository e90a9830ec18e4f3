"""Schedules of learning rates: their optimizer, and what their arguments count."""

from __future__ import annotations

from collections.abc import Iterator

from surestep.doctor.source.trace import SourceLoop
from surestep.doctor.source.training import Action, is_made_by, is_same, options_of, strip_iterators
from surestep.doctor.source.values import Call, Value

TORCH = "torch.optim.lr_scheduler."
PLATEAU = f"{TORCH}ReduceLROnPlateau"


def is_schedule_of_torch(value: Value | None) -> bool:
    """Return whether a value is certainly a schedule of torch that counts its steps."""
    return is_made_by(value, TORCH) and not is_made_by(value, PLATEAU)


def is_stepped_without_arguments(schedule: Action) -> bool:
    """Return whether a schedule of torch counts this step; with an epoch, it does not count."""
    call = schedule.event.call
    is_plain = call is not None and not call.args and not call.keywords
    return is_plain and is_schedule_of_torch(schedule.target)


def creations(value: Value | None) -> Iterator[Call]:
    """Yield the calls that may have made a schedule."""
    for option in options_of(value):
        if isinstance(option, Call):
            yield option


def is_schedule_of(schedule: Value | None, optimizer: Value | None) -> bool:
    """Return whether a schedule was certainly made for an optimizer."""
    made = list(creations(schedule))
    return bool(made) and all(is_same(call.argument(0, "optimizer"), optimizer) for call in made)


def is_over_batches(loop: SourceLoop) -> bool:
    """Return whether a loop certainly takes the batches of a DataLoader."""
    return is_made_by(strip_iterators(loop.iterated), "torch.utils.data.DataLoader")
