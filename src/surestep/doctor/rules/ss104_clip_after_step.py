"""The gradients are clipped after the step that used them.

The optimizer has already applied the gradients at their full size. Clipping them then changes
nothing, because the next batch replaces them. Nothing fails until a large gradient makes the loss
jump.

Ignore it if the clipped gradients are used by something else, such as a step in another process.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from weakref import WeakSet

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher
from surestep.doctor.source.steps import StepOrder, happens_before, is_measurement, is_part_of
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import Action

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from surestep.doctor.watcher import Script

SEVERITY = "error"
FIX = "Clip the gradients before step() and after backward()."


def check(program: Program) -> Iterator[Problem]:
    """Find clips that no step follows, but that a step precedes."""
    for trace in program.traces:
        order = StepOrder(trace)
        for clip in order.actions:
            if clip.kind != "clip" or is_measurement(clip):
                continue
            step = _find_earlier_step(order, clip)
            if step is not None:
                yield at_event(
                    clip.event,
                    f"`{clip.event.text}` clips after `{step.event.text}` has used the gradients.",
                    step_line=step.event.line,
                )


def _find_earlier_step(order: StepOrder, clip: Action) -> Action | None:
    """Return the step before a clip, if the clip cannot serve another step."""
    actions = order.find_pass(clip.event)
    at = actions.index(clip)
    steps = [a for a in actions[:at] if a.is_step]
    if not steps or not happens_before(steps[-1].event, clip.event):
        return None
    before, after = actions[: actions.index(steps[-1])], actions[at + 1 :]
    between = actions[actions.index(steps[-1]) + 1 : at]
    if any(action.kind in ("backward", "clip") for action in between):
        return None
    if any(action.kind == "clip" for action in before):
        return None
    is_used_later = any(action.is_step or action.kind == "backward" for action in after)
    has_backward = any(a.kind == "backward" and is_part_of(a.event, clip.event) for a in before)
    is_certain = has_backward and not is_used_later and order.is_clear_inside(clip.event)
    return steps[-1] if is_certain else None


class ClipAfterStepWatcher(WindowWatcher):
    """Find steps after which the gradients are clipped, and not before them."""

    def __init__(self) -> None:
        super().__init__()
        self._begins_without_clip: WeakSet[Optimizer] = WeakSet()

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        clip = window.find_unused_clip()
        if window.is_first and clip is None:
            self._begins_without_clip.add(optimizer)
        if clip is not None and optimizer in self._begins_without_clip:
            tally.add(clip.location, run.step)

    def describe(self, tally: Tally) -> str:
        return (
            f"The gradients of {tally.mistakes} of {tally.checked} steps were clipped only after "
            "step()."
        )
