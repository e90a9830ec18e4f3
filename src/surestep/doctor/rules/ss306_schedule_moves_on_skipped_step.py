"""The schedule moves on although the GradScaler skipped the step.

With infinite gradients, `scaler.step(optimizer)` changes nothing, and `scaler.update()` lowers the
scale. If `scheduler.step()` is called all the same, the schedule gets ahead of the optimizer: a
warm-up is shorter than meant, and the learning rate ends too early. A few skipped steps at the
start, while the scale is found, do no harm; many of them do.

Ignore it if the schedule counts batches, and not steps, on purpose.

Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

from collections.abc import Iterator

from surestep.doctor.runtime.schedules import ScheduleWatcher
from surestep.doctor.watcher import Observation, Run

SEVERITY = "info"
FIX = "Step the schedule only if scaler.get_scale() did not fall in scaler.update()."
_FEWEST = 5  # skipped steps
_SHARE = 0.1  # of the steps of the schedule: the first ones find the scale


class Watch(ScheduleWatcher):
    """Count the steps of schedules after skipped steps of their optimizers."""

    def observe(self, run: Run) -> Iterator[Observation]:
        for seen in run.schedules.seen:
            if seen.skipped >= _FEWEST and seen.skipped >= _SHARE * seen.steps:
                yield Observation(
                    seen.lines[0],
                    f"{seen.name} made {seen.skipped} of its {seen.steps} steps although the "
                    "GradScaler had skipped the step of the optimizer.",
                    seen.first_at + 1,
                    {"skipped": seen.skipped, "steps": seen.steps},
                )


def bad_infinite_losses() -> None:
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


def bad_large_scale() -> None:
    import torch
    from torch.optim.lr_scheduler import OneCycleLR

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scheduler = OneCycleLR(optimizer, max_lr=0.01, total_steps=40)
    for _ in range(40):
        x = 1000 * torch.randn(8, 4)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


def bad_in_methods() -> None:
    import torch

    class Trainer:
        def __init__(self) -> None:
            self.model = torch.nn.Linear(4, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
            self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=10)
            self.scaler = torch.amp.GradScaler("cpu")

        def step(self, x: torch.Tensor, weight: int) -> None:
            self.optimizer.zero_grad()
            self.scaler.scale(self.model(x).mean() / weight).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()

    trainer = Trainer()
    for index in range(20):
        trainer.step(torch.randn(8, 4), index % 2)


def good_step_was_taken() -> None:
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


def good_first_steps_find_the_scale() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for _ in range(40):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 4)).pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()


def good_once_per_epoch() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(8):
        for index in range(3):
            loss = model(torch.randn(8, 4)).pow(2).mean() / index
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
