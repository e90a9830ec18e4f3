"""The gradients are clipped before the backward pass that computes them.

There is no gradient yet, or only zeros, so nothing is clipped. The step then uses the gradients of
the backward pass at their full size. Nothing fails until a large one makes the loss jump.

Ignore it if the gradients that are clipped come from a part of the step that the source does not
show.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        loss.backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakSet

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher
from surestep.doctor.source.steps import StepOrder, happens_before, is_measurement
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import Action

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from surestep.doctor.watcher import Script

SEVERITY = "error"
FIX = "Clip the gradients after backward() and before step()."


def check(program: Program) -> Iterator[Problem]:
    """Find clips without a backward pass before them, but with one between them and the step."""
    for trace in program.traces:
        order = StepOrder(trace)
        for clip in order.actions:
            if clip.kind != "clip" or is_measurement(clip):
                continue
            backward = _find_later_backward(order, clip)
            if backward is not None:
                yield at_event(
                    clip.event,
                    f"`{clip.event.text}` clips before "
                    f"`{backward.event.text}` computes the gradients.",
                    backward_line=backward.event.line,
                )


def _find_later_backward(order: StepOrder, clip: Action) -> Action | None:
    """Return the backward pass whose gradients are not clipped before the next step."""
    actions = order.find_pass(clip.event)
    at = actions.index(clip)
    if any(action.kind in ("backward", "unscale") for action in actions[:at]):
        return None
    found: Action | None = None
    for action in actions[at + 1 :]:
        if action.kind == "clip":
            return None
        if action.kind == "backward":
            found = found or action
        if action.is_step:
            is_certain = (
                found is not None
                and happens_before(found.event, action.event)
                and happens_before(clip.event, action.event)
                and order.is_clear_inside(action.event)
            )
            return found if is_certain else None
    return None


class ClipBeforeBackwardWatcher(WindowWatcher):
    """Find steps whose gradients were clipped only before the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self._begins_with_clip: WeakSet[Optimizer] = WeakSet()

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        clip = window.find_unused_clip()
        if clip is None:
            return
        if window.is_first:
            self._begins_with_clip.add(optimizer)
        # Otherwise it clips after the step before, which another rule reports.
        if optimizer in self._begins_with_clip:
            tally.add(clip.location, run.step)

    def describe(self, tally: Tally) -> str:
        return (
            f"{tally.mistakes} of {tally.checked} steps used gradients that were not clipped: the "
            "clip came before backward()."
        )
