"""A resumed run restores the optimizer and the epoch, but not the schedule.

The schedule begins at its first step again. A warm-up is repeated, a decay comes as many epochs too
late as the first run has done, and the learning rate jumps at the resume. Nothing fails.

Ignore it if the schedule is meant to start again.

Source: https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html

Wrong:

    import io

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    file = io.BytesIO()
    torch.save({**state, "scheduler": scheduler.state_dict(), "epoch": 2}, file)
    file.seek(0)
    checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    for _ in range(checkpoint["epoch"], 5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()

Right:

    import os

    import torch


    def train(path: str, epochs: int) -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
        start_epoch = 0
        if path:
            saved = torch.load(path, map_location="cpu", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            scheduler.load_state_dict(saved["scheduler"])
            start_epoch = saved["epoch"] + 1
        for _ in range(start_epoch, epochs):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
            scheduler.step()


    train(os.environ.get("CHECKPOINT", ""), 3)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import NOWHERE, Location, Problem, at_event
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.source.schedules import (
    creations,
    is_schedule_of,
    is_stepped_without_arguments,
)
from surestep.doctor.source.steps import StepOrder
from surestep.doctor.source.trace import Event, Program, SourceLoop
from surestep.doctor.source.training import describe, is_scheduler, may_be_same
from surestep.doctor.source.values import Call, Constant
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch.optim import Optimizer

SEVERITY = "warning"
FIX = "Save scheduler.state_dict() in the checkpoint, and load it when the run is resumed."
_MOST = 32  # schedules
# In these, nothing has trained before: the learning rate that is restored is the first one.


def check(program: Program) -> Iterator[Problem]:
    """Find schedules that are stepped from a restored epoch on, but not restored."""
    if program.mentions("last_epoch"):
        return
    for trace in program.traces:
        order = StepOrder(trace)
        loads = [event for event in trace.events if _is_load(event)]
        if not loads or not order.is_all_clear:
            continue
        receivers = [event.call.receiver for event in loads if event.call is not None]
        if any(is_scheduler(receiver) for receiver in receivers):
            continue
        for action in order.actions:
            loops = action.event.loops
            if action.kind != "schedule" or not is_stepped_without_arguments(action):
                continue
            made = list(creations(action.target))
            is_plain = len(made) == 1 and made[0].argument(-1, "last_epoch") is None
            is_restored = any(is_schedule_of(action.target, value) for value in receivers)
            others = [
                a
                for a in order.actions
                if a.kind == "schedule" and a is not action and may_be_same(a.target, action.target)
            ]
            if is_plain and is_restored and not others and loops and _is_resumed(loops[0]):
                yield at_event(
                    action.event,
                    f"`{describe(made[0])}` starts again when the run is resumed: the optimizer "
                    "and the epoch are restored, the schedule is not.",
                )


def _is_load(event: Event) -> bool:
    return event.call is not None and event.call.path == ".load_state_dict"


def _is_resumed(loop: SourceLoop) -> bool:
    """Return whether a loop starts from a number that is not known: `range(start, epochs)`."""
    iterated = loop.iterated
    is_range = isinstance(iterated, Call) and iterated.path == "range"
    if not (is_range and isinstance(iterated, Call) and len(iterated.args) == 2):
        return False
    return not isinstance(iterated.args[0], Constant)


@dataclass
class _Schedule(Occurrence):
    """What happened to a schedule.

    Attributes:
        steps: of it.
        last: steps of its optimizer before its last step; -1 before the first.
        is_restored: whether its state was loaded, or it was stepped without its optimizer.
        since_step: the step that followed when the optimizer was restored; 0 if it was not.
        location: of its first step.
    """

    name: str
    optimizer: weakref.ref[Optimizer]
    steps: int = 0
    last: int = -1
    is_restored: bool = False
    since_step: int = 0
    location: Location = NOWHERE


class ResumedScheduleRestartsWatcher(Watcher):
    """Find schedules at their start beside an optimizer whose learning rate has moved."""

    def __init__(self) -> None:
        self._all: list[_Schedule] = []
        self._of: WeakKeyDictionary[Any, _Schedule] = WeakKeyDictionary()
        self._steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()

    def on_schedule(self, run: Script, schedule: Any) -> None:
        optimizer = getattr(schedule, "optimizer", None)
        if optimizer is None or len(self._all) >= _MOST:
            return
        is_restored = getattr(schedule, "last_epoch", 0) > 0
        made = _Schedule(type(schedule).__name__, weakref.ref(optimizer), is_restored=is_restored)
        self._of[schedule] = made
        self._all.append(made)

    def on_load_state(self, run: Script, owner: Any, state: Any) -> None:
        if owner in self._of:
            self._of[owner].is_restored = True
        groups = state.get("param_groups", ()) if isinstance(state, dict) else ()
        if not any(group.get("initial_lr", group.get("lr")) != group.get("lr") for group in groups):
            return
        now = [group["lr"] for group in getattr(owner, "param_groups", ())]
        if now == [group.get("lr") for group in groups]:
            return  # its own state, as some libraries load it
        for seen in self._all:
            if seen.optimizer() is owner and seen.steps == 0:
                seen.since_step = run.step + 1

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1

    def on_schedule_step(self, run: Script, schedule: Any, arguments: tuple[Any, ...]) -> None:
        seen = self._of.get(schedule)
        if seen is None:
            return
        optimizer = seen.optimizer()
        steps = 0 if optimizer is None else self._steps.get(optimizer, 0)
        seen.steps += 1
        seen.is_restored |= steps == seen.last or bool(arguments)
        seen.last = steps
        if seen.steps == 1:
            seen.location = run.locate()

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._all:
            if seen.since_step and seen.steps > 1 and not seen.is_restored:
                yield seen.report(
                    f"{seen.name} began at its first step, although the optimizer was restored "
                    "with a learning rate that a schedule had changed.",
                    {"steps": seen.steps},
                )
