"""Schedules of learning rates: their optimizer, and what their arguments count."""

from __future__ import annotations

from collections.abc import Iterator

from surestep.doctor.source.trace import SourceLoop
from surestep.doctor.source.training import Action, is_made_by, is_same, options_of, strip_iterators
from surestep.doctor.source.values import Call, Collection, Constant, Operation, Value, walk

TORCH = "torch.optim.lr_scheduler."
_PLATEAU = f"{TORCH}ReduceLROnPlateau"
_LENGTHS = (
    *("total_steps", "steps_per_epoch", "T_max", "total_iters", "num_training_steps", "T_0"),
    "milestones",
)


def is_schedule_of_torch(value: Value | None) -> bool:
    """Return whether a value is certainly a schedule of torch that counts its steps."""
    return is_made_by(value, TORCH) and not is_made_by(value, _PLATEAU)


def is_plateau(value: Value | None) -> bool:
    """Return whether a value is certainly a schedule that follows a metric."""
    return is_made_by(value, _PLATEAU)


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


def lengths_in(values: list[Value]) -> list[Value]:
    """Return what `len()` is taken of in values, unless they divide by it."""
    found: list[Value] = []
    for value in values:
        parts = list(walk(value))
        divisions = [
            option for option in parts if isinstance(option, Operation) and "/" in option.operator
        ]
        if not any(_find_lengths(division.operands[-1]) for division in divisions):
            found.extend(_find_lengths(value))
    return found


def _find_lengths(value: Value) -> list[Value]:
    calls = [option for option in walk(value) if isinstance(option, Call) and option.path == "len"]
    return [call.args[0] for call in calls if call.args]


def steps_in(made: Call) -> list[Value]:
    """Return the arguments of a new schedule that count steps."""
    found = [made.keywords[name] for name in _LENGTHS if name in made.keywords]
    positions = {"CosineAnnealingLR": 1, "OneCycleLR": 2, "CosineAnnealingWarmRestarts": 1}
    position = positions.get(made.name)
    if position is not None and len(made.args) > position:
        found.append(made.args[position])
    return found


def iterates_over(loop: SourceLoop, value: Value) -> bool:
    """Return whether a loop takes all of a value: `for batch in tqdm(enumerate(loader))`."""
    return is_same(strip_iterators(loop.iterated), value)


def is_over_batches(loop: SourceLoop) -> bool:
    """Return whether a loop certainly takes the batches of a DataLoader."""
    return is_made_by(strip_iterators(loop.iterated), "torch.utils.data.DataLoader")


def epochs_of(loop: SourceLoop) -> Value | None:
    """Return N of a loop over `range(N)` or `range(1, N + 1)`."""
    iterated = strip_iterators(loop.iterated)
    if not isinstance(iterated, Call) or iterated.name not in ("range", "trange"):
        return None
    if len(iterated.args) == 1:
        return iterated.args[0]
    match iterated.args:
        case (Constant(value=0), end):
            return end
        case (Constant(value=1), Operation(operator="+", operands=(end, Constant(value=1)))):
            return end
    return None


def numbers_of(value: Value | None) -> list[float]:
    """Return a number, or the numbers of a list; empty if they are not known."""
    found = value.elements if isinstance(value, Collection) and value.is_complete else [value]
    numbers = [option.value for option in found if isinstance(option, Constant)]
    is_known = len(numbers) == len(found) and all(isinstance(n, (int, float)) for n in numbers)
    return numbers if is_known else []
