"""At the end of a finished run, the learning rate is not near its end.

A schedule is planned for a number of steps. If the run takes fewer, the rate is still high at the
end, and the last steps, which usually give the lowest loss, are missing. The number of steps was
computed from the wrong epochs, data or ranks, the own loop ends early, or many steps were skipped:
a skipped step does not advance the schedule.

Runs of `surestep train` that an early stop or a callback ends are not reported. `surestep watch`
sees schedules of PyTorch and of transformers that have an end and are stepped for each batch, or
for each epoch of a DataLoader, in a script that ends without an error.

Ignore it if you ended the run on purpose, for example by an early stop.

Source: https://arxiv.org/abs/2405.18392

Wrong:

    import torch

    import surestep

    x = torch.randn(64, 4)
    data = (x, x.sum(1, keepdim=True))
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=data)
    schedule = surestep.Schedule(name="cosine")
    config = surestep.Config(epochs=20, batch_size=8, schedule=schedule, max_grad_norm="off")
    with surestep.prepare(task, config, run="run") as session:
        for result in session.steps():
            if result.step == 40:
                break
        session.end("finished")

Right:

    import torch

    import surestep

    x = torch.randn(64, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    schedule = surestep.Schedule(name="cosine")
    config = surestep.Config(max_steps=40, batch_size=8, schedule=schedule, max_grad_norm="off")
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from surestep.doctor.limits import ABOVE_END, COMPLETE_SHARE
from surestep.doctor.problem import Problem
from surestep.doctor.runtime.schedule_recorder import ScheduleWatcher, Seen
from surestep.doctor.watcher import Script

SEVERITY = "info"
REVIEWED = True
FIX = (
    "Plan the schedule for the steps of the run (in Trainer, by max_steps or epochs), or find out "
    "why steps are skipped."
)


@dataclass
class _Planned:
    """What a schedule is planned for, and what it did.

    Attributes:
        total: steps.
        end: the learning rate after them.
        steps: that it has made, those before a resume too; 0 if it is part of another schedule.
        highest: learning rate so far.
        last: learning rate.
    """

    total: int
    end: float
    steps: int = 0
    highest: float = 0.0
    last: float = 0.0


class ScheduleEndsElsewhereWatcher(ScheduleWatcher):
    """Compare the steps of schedules with those that they are planned for."""

    def __init__(self) -> None:
        self._planned: list[tuple[Seen, _Planned]] = []

    def on_schedule(self, run: Script, schedule: Any) -> None:
        seen, planned = run.schedules.find(schedule), _read_planned(schedule)
        if seen is not None and planned is not None:
            self._planned.append((seen, planned))

    def on_schedule_step(self, run: Script, schedule: Any, arguments: tuple[Any, ...]) -> None:
        rate = schedule.optimizer.param_groups[0]["lr"]
        made = run.schedules.find(schedule)
        for seen, planned in self._planned:
            if seen is made and isinstance(rate, float):  # a tensor may be on a device
                planned.steps = schedule.last_epoch + 1
                planned.highest, planned.last = max(planned.highest, rate), rate

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen, planned in self._planned:
            is_usual = seen.is_per_batch or seen.is_per_epoch
            if not is_usual or not run.is_whole:
                continue
            if seen.is_per_epoch and seen.counts_batches(planned.total):
                continue  # SS303
            is_short = 0 < planned.steps < COMPLETE_SHARE * planned.total
            height = planned.highest - planned.end
            if is_short and planned.last - planned.end > ABOVE_END * height:
                last, end = planned.last / planned.highest, planned.end / planned.highest
                yield seen.report(
                    f"{seen.name} is planned for {planned.total} steps, and made {planned.steps}: "
                    f"the last learning rate was {last:.0%} of the highest, and its end is "
                    f"{end:.0%}.",
                    {"steps": planned.steps, "planned": planned.total, "last": last, "end": end},
                )


def _read_planned(schedule: Any) -> _Planned | None:
    """Return what a schedule is planned for; None if it has no end, or rises to it."""
    group = schedule.optimizer.param_groups[0]
    match type(schedule).__name__:
        case "OneCycleLR":
            return _Planned(schedule.total_steps, group["min_lr"])
        case "CosineAnnealingLR":
            return _Planned(schedule.T_max, schedule.eta_min)
        case "PolynomialLR":
            return _Planned(schedule.total_iters, 0.0)
        case "LinearLR" if schedule.end_factor < schedule.start_factor:
            return _Planned(schedule.total_iters, schedule.base_lrs[0] * schedule.end_factor)
        case "SequentialLR":
            last = _read_planned(schedule._schedulers[-1])
            if last is not None:
                last.total += schedule._milestones[-1]
            return last
        case "LambdaLR":  # of transformers
            options = getattr(schedule.lr_lambdas[0], "keywords", {})
            total = options.get("num_training_steps")
            is_once = options.get("num_cycles", 0.5) == 0.5
            if isinstance(total, int) and is_once:
                end = float(schedule.lr_lambdas[0](total))
                return _Planned(total, schedule.base_lrs[0] * end)
    return None
