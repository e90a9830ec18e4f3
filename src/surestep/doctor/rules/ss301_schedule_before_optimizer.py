"""The schedule is stepped before the optimizer.

The first learning rate is never used: the schedule moves on to the second before the optimizer has
made a step. A warm-up loses its first value, and each drop comes one step too early. PyTorch only
prints a warning, once.

Ignore it if the first learning rate is meant to be skipped.

Source: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        scheduler.step()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
"""

from __future__ import annotations

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.schedule_recorder import ScheduleWatcher
from surestep.doctor.source.schedules import is_schedule_of, is_stepped_without_arguments
from surestep.doctor.source.steps import StepOrder
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import Action
from surestep.doctor.watcher import Script

SEVERITY = "warning"
FIX = "Call scheduler.step() after optimizer.step()."
_FEWEST = 3  # steps of the optimizer


def check(program: Program) -> Iterator[Problem]:
    """Find steps of a schedule before the first step of its optimizer in the same loop."""
    for trace in program.traces:
        order = StepOrder(trace)
        for schedule in order.actions:
            if schedule.kind != "schedule" or not is_stepped_without_arguments(schedule):
                continue
            step = _find_first_step(order, schedule)
            if step is not None:
                yield at_event(
                    schedule.event,
                    f"`{schedule.event.text}` comes before "
                    f"`{step.event.text}`: the first learning rate is skipped.",
                    step_line=step.event.line,
                )


def _find_first_step(order: StepOrder, schedule: Action) -> Action | None:
    """Return the first step of the optimizer, if the schedule is certainly stepped before it."""
    for action in order.actions:
        is_step = action.is_step
        if not is_step or not is_schedule_of(schedule.target, action.target):
            continue
        is_first = (
            schedule.event.loop in action.event.loops
            and order.is_before(schedule.event, action.event)
            and set(schedule.event.branches) <= set(action.event.branches)
            and order.is_clear_before(action.event)
        )
        return action if is_first else None
    return None


class ScheduleBeforeOptimizerWatcher(ScheduleWatcher):
    """Find schedules whose first step comes before that of their optimizer."""

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in run.schedules.seen:
            # Several steps before the first one restore a schedule; a scaler may have skipped one.
            is_first = seen.before == 1 and seen.first_at == 0 and seen.since_step == 1
            is_in_loop = len(seen.lines) == 2 and seen.lines[0] == seen.lines[1]
            is_usual = seen.steps <= seen.optimizer_steps + 1 and seen.optimizer_steps >= _FEWEST
            if is_first and is_in_loop and is_usual and not (seen.is_scaled or seen.is_part):
                yield Problem(
                    f"{seen.name} made its first step before the optimizer did: the first learning "
                    f"rate was skipped, and all {seen.steps} steps of the schedule come too early.",
                    {"steps": seen.steps, "optimizer_steps": seen.optimizer_steps},
                    location=seen.lines[0],
                    since_step=1,
                )
