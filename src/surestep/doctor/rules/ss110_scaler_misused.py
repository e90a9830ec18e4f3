"""A GradScaler is used for only a part of the step, or at the wrong time.

It works if the loss is scaled, `scaler.step(optimizer)` makes the step, and `scaler.update()` comes
once after it. If `optimizer.step()` is called instead, the update is 65,536 times too large. If the
loss is not scaled, it is as many times too small. If gradients of several batches are summed, all
of them must have the same scale: `unscale_()` and `update()` belong to the last of them. After
`unscale_()`, `optimizer.step()` has the right gradients, but it is not skipped if one is infinite.

Ignore it if the missing call is made where the source does not show it.

Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(5):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 4)).pow(2).mean()).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm.isfinite():
            optimizer.step()
        scaler.update()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher
from surestep.doctor.source.steps import StepOrder, StepWindow, find_windows, is_enabled, is_scaled
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import (
    Action,
    describe,
    is_same,
    is_scaler,
    may_be_same,
    options_of,
)
from surestep.doctor.source.values import Call, Operation, Value

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from surestep.doctor.watcher import Script

SEVERITY = "error"
FIX = (
    "Call scaler.scale(loss).backward() for each batch, and scaler.step(optimizer) and then "
    "scaler.update() once for each step."
)
# torch raises an error for these.


def check(program: Program) -> Iterator[Problem]:
    """Find steps without the scaler, losses that are not scaled, and calls at the wrong time."""
    for trace in program.traces:
        order = StepOrder(trace)
        for step in order.actions:
            if not order.is_clear_inside(step.event):
                continue
            if step.kind == "step":
                yield from _find_step_of_scaled(order, step)
            if step.kind == "scaler_step" and _is_made(step):
                yield from _find_unscaled_loss(order, step)
                yield from _find_missing_update(order, step)
                for window in find_windows(order):
                    if window.step is step and window.has_one_step:
                        yield from _find_calls_in_every_batch(window)


def _scaler_of(action: Action) -> Value | None:
    return None if action.event.call is None else action.event.call.receiver


def _is_made(step: Action) -> bool:
    """Return whether the scaler of a step is made by the script, and may be enabled."""
    made = options_of(_scaler_of(step))
    is_scaler_of_torch = all(
        isinstance(option, Call)
        and option.path.startswith("torch.")
        and option.name == "GradScaler"
        for option in made
    )
    return bool(made) and is_scaler_of_torch and is_enabled(_scaler_of(step))


def _find_step_of_scaled(order: StepOrder, step: Action) -> Iterator[Problem]:
    if any("get_scale" in event.file.names for event in order.trace.events):
        return
    for action in order.actions:
        if action.kind == "scaler_step" and may_be_same(action.target, step.target):
            return
    for action in reversed(order.find_pass(step.event)):
        if not order.is_before(action.event, step.event):
            continue
        if action.kind == "unscale" and is_same(action.target, step.target):
            is_checked = set(step.event.branches) - set(action.event.branches)
            if not is_checked and is_enabled(_scaler_of(action)):
                yield at_event(
                    step.event,
                    f"`{step.event.text}` is not skipped if "
                    f"`{action.event.text}` found a gradient that is not finite.",
                )
            return
        if action.is_step or action.kind == "unscale":
            return
        if action.kind == "backward":
            loss = action.target
            scaler = loss.receiver if isinstance(loss, Call) else None
            if is_scaled(loss) and is_enabled(scaler):
                yield at_event(
                    step.event,
                    f"`{step.event.text}` uses gradients that are multiplied with the "
                    f"scale of `{describe(scaler)}`.",
                    backward_line=action.event.line,
                )
            return


def _find_unscaled_loss(order: StepOrder, step: Action) -> Iterator[Problem]:
    calls = (event.call for event in order.trace.events)
    if any(call is not None and call.path == ".scale" for call in calls):
        return
    for action in order.find_pass(step.event):
        losses = options_of(action.target)
        is_computed = all(isinstance(loss, (Call, Operation)) for loss in losses)
        if action.kind == "backward" and losses and is_computed:
            yield at_event(
                action.event,
                f"`{action.event.text}` does not scale the loss, but "
                f"`{step.event.text}` divides the gradients by the scale.",
            )


def _find_missing_update(order: StepOrder, step: Action) -> Iterator[Problem]:
    if step.event.loop is None or not order.is_all_clear:
        return
    if not any(action.kind == "update" for action in order.actions):
        yield at_event(
            step.event,
            f"No `update()` follows `{step.event.text}`: the scale stays as it is, and "
            "the second step is an error.",
        )


def _find_calls_in_every_batch(window: StepWindow) -> Iterator[Problem]:
    step = window.step
    for action in window.actions:
        is_always = action.event.loops == step.event.loops and not action.event.branches
        is_unscale = action.kind == "unscale" and is_same(action.target, step.target)
        is_update = action.kind == "update" and is_scaler(action.target)
        if is_always and (is_unscale or is_update):
            yield at_event(
                action.event,
                f"`{action.event.text}` runs for each batch, but "
                f"`{step.event.text}` only for one in `{window.text}`: the summed "
                "gradients have different scales.",
            )


class ScalerMisusedWatcher(WindowWatcher):
    """Find steps with scaled gradients, and gradients that are unscaled several times."""

    def __init__(self) -> None:
        super().__init__()
        self._scaled = 0  # the number of the last backward pass of a scaled loss
        self._stepping: WeakSet[Optimizer] = WeakSet()

    def on_scale(self, run: Script, scaler: Any) -> None:
        self._scaled = run.backwards + 1

    def on_scaler_step(self, run: Script, scaler: Any, optimizer: Optimizer) -> None:
        self._stepping.add(optimizer)

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        is_by_scaler = optimizer in self._stepping
        self._stepping.discard(optimizer)
        used = window.events[window.find_last("zero") + 1 :]
        unscaled = [event for event in used if event.kind == "unscale"]
        if len(unscaled) > 1:
            tally.add(unscaled[0].location, run.step, len(unscaled))
            return
        kinds = [event.kind for event in used]
        is_scaled = self._scaled == run.backwards and kinds[-1:] == ["backward"]
        if is_scaled and not (is_by_scaler or unscaled or "write" in kinds):
            tally.add(used[-1].location, run.step)

    def describe(self, tally: Tally) -> str:
        if tally.most:
            return (
                f"Gradients were unscaled up to {tally.most} times before one step, in "
                f"{tally.mistakes} of {tally.checked} steps: those of its batches differ in scale."
            )
        return (
            f"{tally.mistakes} of {tally.checked} steps used gradients that were multiplied with "
            "the scale of the GradScaler: step() of the optimizer was called, not that of the "
            "scaler."
        )
