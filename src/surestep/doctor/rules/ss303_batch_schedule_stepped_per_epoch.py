"""A schedule that counts batches is stepped once for each epoch.

Its length was computed with `len(loader)`, but it moves on only at the end of an epoch. A warm-up
never ends and a decay never starts: the run trains with the first few values of the schedule.
Nothing fails.

Ignore it if the loader whose length is used has one batch.

Source: https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html

Wrong:

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, steps_per_epoch=len(loader), epochs=3
    )
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        scheduler.step()

Right:

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.1, steps_per_epoch=len(loader), epochs=3
    )
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
from surestep.doctor.source.schedules import TORCH, creations, is_over_batches, is_schedule_of
from surestep.doctor.source.steps import StepOrder
from surestep.doctor.source.trace import Program, SourceLoop
from surestep.doctor.source.training import Action, describe, is_same, strip_iterators
from surestep.doctor.source.values import Call, Operation, Value, walk
from surestep.doctor.watcher import Script

SEVERITY = "error"
FIX = "Step the schedule after each step of the optimizer, in the loop over the batches."
_FEWEST_EPOCHS = 4  # for a warm-up, which is shorter than the run
_LENGTHS = (
    *("total_steps", "steps_per_epoch", "T_max", "total_iters", "num_training_steps", "T_0"),
    "milestones",
)


def check(program: Program) -> Iterator[Problem]:
    """Find schedules made for all batches that are stepped outside the loop over them."""
    for trace in program.traces:
        order = StepOrder(trace)
        schedules = [action for action in order.actions if action.kind == "schedule"]
        for schedule in schedules:
            loop = schedule.event.loop
            call = schedule.event.call
            if loop is None or call is None or call.args or call.keywords:
                continue
            others = [s for s in schedules if set(s.event.loops) > set(schedule.event.loops)]
            inner = _find_batch_loop(order, schedule, loop)
            if inner is not None and not others:
                yield at_event(
                    schedule.event,
                    f"`{schedule.event.text}` runs once for each epoch, but "
                    f"`{describe(next(creations(schedule.target)))}` counts batches.",
                    batches_line=getattr(inner.node, "lineno", None),
                )


def _find_batch_loop(order: StepOrder, schedule: Action, outer: SourceLoop) -> SourceLoop | None:
    """Return the loop over the batches that a schedule counts, inside the loop around its step."""
    made = list(creations(schedule.target))
    counted = [option for call in made[:1] for option in _lengths_in(_steps_in(call))]
    is_cyclic = len(made) == 1 and _has_cycles_of_batches(made[0])
    if len(made) != 1 or not (counted or is_cyclic):
        return None
    for action in order.find_pass(schedule.event):
        is_step = action.is_step
        if not is_step or not is_schedule_of(schedule.target, action.target):
            continue
        for inner in action.event.loops[action.event.loops.index(outer) + 1 :]:
            if any(is_same(strip_iterators(inner.iterated), option) for option in counted):
                return inner
            if is_cyclic and is_over_batches(inner):
                return inner
    return None


def _has_cycles_of_batches(made: Call) -> bool:
    """Return whether a schedule goes up and down in 2,000 steps each, as CyclicLR does unasked."""
    is_open = made.argument(3, "step_size_up") is None and not made.has_unknown_arguments
    return made.path == f"{TORCH}CyclicLR" and is_open


def _lengths_in(values: list[Value]) -> list[Value]:
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


def _steps_in(made: Call) -> list[Value]:
    """Return the arguments of a new schedule that count steps."""
    found = [made.keywords[name] for name in _LENGTHS if name in made.keywords]
    positions = {"CosineAnnealingLR": 1, "OneCycleLR": 2, "CosineAnnealingWarmRestarts": 1}
    position = positions.get(made.name)
    if position is not None and len(made.args) > position:
        found.append(made.args[position])
    return found


class BatchScheduleSteppedPerEpochWatcher(ScheduleWatcher):
    """Compare the length of a schedule with the batches of a whole run."""

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in run.schedules.seen:
            length = _read_length(seen)
            if seen.optimizer_steps in seen.numbers:
                length = seen.optimizer_steps
            if not seen.is_per_epoch or not run.is_whole or seen.is_part or length <= seen.epochs:
                continue
            is_warmup = seen.name == "LinearLR" and seen.epochs >= _FEWEST_EPOCHS
            is_part_in_batches = length >= 2 * seen.batches and length % seen.batches == 0
            if seen.counts_batches(length) or (is_warmup and is_part_in_batches):
                yield Problem(
                    f"{seen.name} made {seen.steps} of its {length} steps: one in each epoch of "
                    f"{seen.batches} batches.",
                    {"steps": seen.steps, "length": length, "batches": seen.batches},
                    location=seen.lines[0],
                    since_step=seen.first_at,
                )


def _read_length(seen: Seen) -> int:
    """Return after how many steps a schedule has ended; 0 if it has no end."""
    for name in ("total_steps", "T_max", "total_iters"):
        if isinstance(seen.values.get(name), int):
            return int(seen.values[name])
    return 0
