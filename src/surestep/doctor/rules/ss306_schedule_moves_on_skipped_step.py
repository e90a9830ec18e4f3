"""The schedule moves on although the GradScaler skipped the step.

With infinite gradients, `scaler.step(optimizer)` changes nothing, and `scaler.update()` lowers the
scale. If `scheduler.step()` is called all the same, the schedule gets ahead of the optimizer: a
warm-up is shorter than meant, and the learning rate ends too early. A few skipped steps at the
start, while the scale is found, do no harm; many of them do.

Ignore it if the schedule counts batches, and not steps, on purpose.

Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    scaler = torch.amp.GradScaler("cpu")
    for index in range(24):
        loss = model(torch.randn(8, 4)).pow(2).mean() / (index % 3)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    scaler = torch.amp.GradScaler("cpu")
    for index in range(24):
        loss = model(torch.randn(8, 4)).pow(2).mean() / (index % 3)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            scheduler.step()
"""

from __future__ import annotations

from collections.abc import Iterator

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.schedule_recorder import ScheduleWatcher
from surestep.doctor.watcher import Script

SEVERITY = "info"
FIX = "Step the schedule only if scaler.get_scale() did not fall in scaler.update()."
_FEWEST = 5  # skipped steps
_SHARE = 0.1  # of the steps of the schedule: the first ones find the scale


class ScheduleMovesOnSkippedStepWatcher(ScheduleWatcher):
    """Count the steps of schedules after skipped steps of their optimizers."""

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in run.schedules.seen:
            if seen.skipped >= _FEWEST and seen.skipped >= _SHARE * seen.steps:
                yield Problem(
                    f"{seen.name} made {seen.skipped} of its {seen.steps} steps although the "
                    "GradScaler had skipped the step of the optimizer.",
                    {"skipped": seen.skipped, "steps": seen.steps},
                    location=seen.lines[0],
                    since_step=seen.first_at + 1,
                )
