"""Gradients are zeroed after the backward pass and before the step that should use them.

The step finds no gradient, so it changes nothing, or only decays the weights. Nothing fails: the
loss is computed and logged as usual, but it does not fall.

Ignore it if the gradients were copied elsewhere and come back in a way that the source does not
show.

Source: https://docs.pytorch.org/docs/stable/optim.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, y = torch.randn(8, 4), torch.randn(8, 1)


    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss


    for _ in range(5):
        optimizer.step(closure)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher, has_gradient
from surestep.doctor.source.steps import StepOrder, happens_before, is_zeroed_by
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import Action, may_be_same
from surestep.doctor.source.values import Attribute, walk

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from surestep.doctor.watcher import Script

SEVERITY = "error"
FIX = "Call optimizer.zero_grad() before backward() or after step(), not between them."


def check(program: Program) -> Iterator[Problem]:
    """Find calls of `zero_grad` between the last backward pass and a step."""
    for trace in program.traces:
        order = StepOrder(trace)
        for step in order.actions:
            if not step.is_step or _has_closure(step):
                continue
            for zero in order.find_pass(step.event):
                backward = _find_lost(order, zero, step)
                if backward is not None:
                    yield at_event(
                        zero.event,
                        f"`{zero.event.text}` wipes the gradients of "
                        f"`{backward.event.text}` before "
                        f"`{step.event.text}` uses them.",
                        backward_line=backward.event.line,
                        step_line=step.event.line,
                    )
            for zero in order.actions:
                backward = _find_discarded(order, zero, step)
                if backward is not None:
                    is_clear = order.is_clear(zero.event, step.event)
                    yield at_event(
                        zero.event,
                        f"`{zero.event.text}` wipes the gradients of the passes before it: "
                        f"`{step.event.text}` after the loop uses those of the last one only.",
                        assumed="" if is_clear else "No other call in the loop takes a step.",
                        backward_line=backward.event.line,
                        step_line=step.event.line,
                    )


def _has_closure(step: Action) -> bool:
    call = step.event.call
    return step.kind == "step" and (call is None or bool(call.args or call.keywords))


def _find_lost(order: StepOrder, zero: Action, step: Action) -> Action | None:
    """Return the backward pass whose gradients a zeroing before a step wipes."""
    if not is_zeroed_by(zero, step.target) or not order.is_before(zero.event, step.event):
        return None
    between = order.between(zero.event, step.event)
    is_last = not any(a.is_step or a.kind == "backward" for a in between)
    if not (is_last and happens_before(zero.event, step.event)):
        return None
    for action in reversed(order.find_pass(step.event)):
        if not order.is_before(action.event, zero.event):
            continue
        if action.is_step and may_be_same(action.target, step.target):
            return None
        if action.kind == "backward":
            return action if order.is_clear(action.event, step.event) else None
    return None


def _find_discarded(order: StepOrder, zero: Action, step: Action) -> Action | None:
    """Return a backward pass in a loop that zeroes in each pass, and after which comes the step."""
    loop = zero.event.loop
    if loop is None or step.event.loops != zero.event.loops[:-1]:
        return None
    if not is_zeroed_by(zero, step.target) or not order.is_before(zero.event, step.event):
        return None
    inside = [action for action in order.actions if loop in action.event.loops]
    is_stepped = any(a.is_step and may_be_same(a.target, step.target) for a in inside)
    backwards = [
        action
        for action in inside
        if action.kind == "backward"
        and order.is_before(zero.event, action.event)
        and set(zero.event.branches) <= set(action.event.branches)
    ]
    is_used = any(  # `gradients = [p.grad for p in parameters]`
        isinstance(part, Attribute) and part.name == "grad"
        for event in order.trace.events
        if event.kind == "store" and loop in event.loops
        for part in walk(event.value, 20)
    )
    return backwards[0] if backwards and not is_stepped and not is_used else None


class ZeroGradBetweenBackwardAndStepWatcher(WindowWatcher):
    """Find steps whose gradients were zeroed after the last backward pass."""

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        backward, zero = window.find_last("backward"), window.find_last("zero")
        if 0 <= backward < zero and window.find_last("write") < zero:
            tally.add(window.events[zero].location, run.step)

    def judge_closure(self, run: Script, optimizer: Optimizer, tally: Tally) -> None:
        is_of_torch = type(optimizer).__module__.startswith("torch.optim.")  # it zeroes nothing
        if is_of_torch and not has_gradient(optimizer):
            tally.checked += 1
            tally.add(run.locate(), run.step)

    def describe(self, tally: Tally) -> str:
        return (
            f"{tally.mistakes} of {tally.checked} steps had no gradient: it was zeroed between "
            "backward() and step()."
        )
