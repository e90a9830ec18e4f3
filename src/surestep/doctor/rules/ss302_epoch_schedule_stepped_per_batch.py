"""A schedule that counts epochs is stepped for each batch.

Its milestones, its `step_size` or its `T_max` are given in epochs, but each batch moves it on. The
learning rate decays as many times too fast as the loader has batches, and most of the run trains
with a tiny one. Nothing fails.

Ignore it if the numbers count batches.

Source: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate

Wrong:

    import torch
    from torch.optim.lr_scheduler import ExponentialLR
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, gamma=0.9)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()

Right:

    import torch
    from torch.optim.lr_scheduler import ExponentialLR
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ExponentialLR(optimizer, gamma=0.99)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()
"""

from __future__ import annotations

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.schedule_recorder import ScheduleWatcher, Seen
from surestep.doctor.source.schedules import (
    TORCH,
    creations,
    is_over_batches,
    is_schedule_of,
    is_stepped_without_arguments,
)
from surestep.doctor.source.steps import StepOrder, happens_before
from surestep.doctor.source.trace import Program, SourceLoop
from surestep.doctor.source.training import Action, describe, is_same, strip_iterators
from surestep.doctor.source.values import Call, Collection, Constant, Operation, Value
from surestep.doctor.watcher import Script

SEVERITY = "warning"
FIX = "Step the schedule once for each epoch, after the loop over the batches."
_LONG_STEP_SIZE = 100  # is given in batches
_TINY = 1e-3  # of the first learning rate
_HALF = 0.5  # after one epoch
_LARGEST_GAMMA = 0.95  # that is for epochs: for batches, it is much closer to 1


def check(program: Program) -> Iterator[Problem]:
    """Find schedules whose arguments fit the epochs, but that are stepped beside the optimizer."""
    for trace in program.traces:
        order = StepOrder(trace)
        for schedule in order.actions:
            loops = schedule.event.loops
            is_plain = schedule.kind == "schedule" and is_stepped_without_arguments(schedule)
            if not is_plain or len(loops) < 2 or not is_over_batches(loops[-1]):
                continue
            if not _is_beside_step(order, schedule):
                continue
            epochs = _epochs_of(loops[-2])
            made = list(creations(schedule.target))
            if epochs is not None and len(made) == 1 and (unit := _epochs_in(made[0], epochs)):
                yield at_event(
                    schedule.event,
                    f"`{schedule.event.text}` runs for each batch, but {unit} of "
                    f"`{describe(made[0])}` is for epochs.",
                    epochs=describe(epochs),
                )


def _epochs_of(loop: SourceLoop) -> Value | None:
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


def _is_beside_step(order: StepOrder, schedule: Action) -> bool:
    """Return whether a schedule follows each step of its optimizer, under no further condition."""
    return any(
        action.is_step
        and is_schedule_of(schedule.target, action.target)
        and happens_before(action.event, schedule.event)
        and action.event.branches == schedule.event.branches
        for action in order.actions
    )


def _epochs_in(made: Call, epochs: Value) -> str:
    """Return the argument of a schedule that counts epochs; "" if none certainly does."""
    total = epochs.value if isinstance(epochs, Constant) else None
    if made.path == f"{TORCH}CosineAnnealingLR":
        length = made.argument(1, "T_max")
        numbers = _numbers_of(length)
        is_equal = numbers == [total] and total is not None
        return "`T_max`" if length is not None and (is_same(length, epochs) or is_equal) else ""
    if not isinstance(total, int) or total < 3:
        return ""
    if made.path == f"{TORCH}ExponentialLR":
        gamma = made.argument(1, "gamma")
        value = gamma.value if isinstance(gamma, Constant) else None
        is_small = isinstance(value, float) and 0 < value <= _LARGEST_GAMMA
        return "`gamma`" if is_small else ""
    if made.path == f"{TORCH}StepLR":
        sizes = _numbers_of(made.argument(1, "step_size"))
        return "`step_size`" if sizes and 1 < sizes[0] <= total else ""
    if made.path == f"{TORCH}MultiStepLR":
        milestones = _numbers_of(made.argument(1, "milestones"))
        is_within = bool(milestones) and total / 4 <= max(milestones) <= total
        return "`milestones`" if is_within else ""
    return ""


def _numbers_of(value: Value | None) -> list[float]:
    """Return a number, or the numbers of a list; empty if they are not known."""
    found = value.elements if isinstance(value, Collection) and value.is_complete else [value]
    numbers = [option.value for option in found if isinstance(option, Constant)]
    is_known = len(numbers) == len(found) and all(isinstance(n, (int, float)) for n in numbers)
    return numbers if is_known else []


class EpochScheduleSteppedPerBatchWatcher(ScheduleWatcher):
    """Compare what a schedule counts with the batches and the epochs of a run."""

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in run.schedules.seen:
            if not seen.is_per_batch or seen.batches < 2 or seen.is_part:
                continue
            if unit := _find_short_unit(seen):
                yield Problem(
                    f"{seen.name} made {seen.steps} steps in {seen.epochs} epochs of "
                    f"{seen.batches} batches, but {unit}.",
                    {"steps": seen.steps, "epochs": seen.epochs, "batches": seen.batches},
                    location=seen.lines[0],
                    since_step=seen.first_at + 1,
                )


def _find_short_unit(seen: Seen) -> str:
    """Return the setting that is too small to count batches; "" without one."""
    if seen.name == "CosineAnnealingLR":
        length = seen.values["T_max"]
        is_short = length < seen.batches or length == seen.epochs
        is_over = seen.steps >= 2 * length
        return f"T_max={length}: the learning rate rose again" if is_short and is_over else ""
    if seen.name == "MultiStepLR":
        last = max(seen.values["milestones"], default=0)
        is_short = 1 < last <= max(seen.batches, seen.epochs) and last < seen.steps
        return f"its last milestone is {last}" if is_short else ""
    if seen.name == "StepLR":
        size, gamma = seen.values["step_size"], seen.values["gamma"]
        fallen = gamma ** (seen.steps // size)
        is_for_epochs = size > 1 or gamma <= _LARGEST_GAMMA
        if 0 < fallen <= _TINY and is_for_epochs and size <= min(seen.batches, _LONG_STEP_SIZE):
            return f"step_size={size}: the learning rate fell to {fallen:.1g} of its first value"
    if seen.name == "ExponentialLR":
        gamma = seen.values["gamma"]
        if 0 < gamma <= _LARGEST_GAMMA and gamma**seen.batches <= _HALF and seen.epochs > 1:
            fallen = gamma**seen.steps
            return f"gamma={gamma:g}: the learning rate fell to {fallen:.1g} of its first value"
    return ""
