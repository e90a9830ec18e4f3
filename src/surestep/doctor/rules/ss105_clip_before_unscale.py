"""Gradients that a GradScaler has scaled are clipped before they are unscaled.

The scaled gradients are 65,536 times too large at first, so all of them are clipped. After
`scaler.step()` has divided by the scale, the update is as many times smaller than meant. Nothing
fails: training is slow, and its speed follows the scale.

Ignore it if the limit of the norm is multiplied with the scale.

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
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(5):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 4)).pow(2).mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.parameters import iter_parameters
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.steps import StepOrder, is_enabled, is_measurement, is_scaled
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import Action
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

SEVERITY = "error"
FIX = "Call scaler.unscale_(optimizer) after backward() and before the gradients are clipped."
_LARGE_LIMIT = 100.0  # is that of scaled gradients


def check(program: Program) -> Iterator[Problem]:
    """Find clips between a scaled backward pass and the step of the scaler."""
    for trace in program.traces:
        order = StepOrder(trace)
        for clip in order.actions:
            if clip.kind != "clip" or is_measurement(clip):
                continue
            found = _find_scaled_backward(order, clip)
            is_here = found is not None and found.kind == "backward"
            if found is not None and (is_here or not _unscales(program)):
                yield at_event(
                    clip.event,
                    f"`{clip.event.text}` clips gradients that are still multiplied "
                    "with the scale of the GradScaler.",
                    backward_line=found.event.line if is_here else None,
                    assumed="" if is_here else "No caller unscales them.",
                )


def _unscales(program: Program) -> bool:
    """Return whether one of the files unscales gradients, maybe before the function."""
    return program.mentions("unscale_") or program.mentions("unscale_gradients")


def _find_scaled_backward(order: StepOrder, clip: Action) -> Action | None:
    """Return the backward pass of scaled gradients that a clip gets, or else the scaler's step."""
    actions = order.find_pass(clip.event)
    at = actions.index(clip)
    step = next((a for a in actions[at:] if a.is_step or a.kind == "backward"), None)
    if step is None or step.kind != "scaler_step":
        return None
    call = step.event.call
    if call is None or not is_enabled(call.receiver):
        return None
    for action in reversed(actions[:at]):
        if action.is_step or action.kind == "unscale":
            return None
        if action.kind == "backward":
            is_known = order.is_clear(action.event, clip.event)
            return action if is_scaled(action.target) and is_known else None
    # Without a backward pass here: scaler.step() divides what nothing has unscaled.
    is_in_function = bool(clip.event.stack) and clip.event.stack == step.event.stack
    return step if is_in_function and order.is_clear(clip.event, step.event) else None


@dataclass(frozen=True)
class _Clip:
    """A clip, with the parameters and the optimizers whose gradients were unscaled before it."""

    location: Location
    backwards: int
    parameters: frozenset[int]
    unscaled: frozenset[int]


class ClipBeforeUnscaleWatcher(Watcher):
    """Compare what was clipped before a step with what was unscaled then."""

    SAMPLED = ("on_clip", "on_scaler_step")

    def __init__(self) -> None:
        self._scaler: Any = None
        self._clip: _Clip | None = None
        self._tally = Tally()  # of steps

    def on_scale(self, run: Script, scaler: Any) -> None:
        self._scaler = weakref.ref(scaler)

    def on_clip(
        self, run: Script, parameters: Sequence[Tensor], limit: float, norm: Tensor | None
    ) -> None:
        scaler = None if self._scaler is None else self._scaler()
        # Without a limit the norm is only measured; a large one is multiplied with the scale.
        if scaler is None or limit >= _LARGE_LIMIT:
            return
        from surestep.doctor import private

        stages = private.list_scaler_stages(scaler)
        if stages is None:
            return
        unscaled = [key for key, stage in stages.items() if stage != "READY"]
        ids = frozenset(map(id, parameters))
        self._clip = _Clip(run.locate(), run.backwards, ids, frozenset(unscaled))

    def on_scaler_step(self, run: Script, scaler: Any, optimizer: Optimizer) -> None:
        clip, self._clip = self._clip, None
        self._tally.checked += 1
        if clip is None or clip.backwards != run.backwards or id(optimizer) in clip.unscaled:
            return
        if any(id(p) in clip.parameters for p in iter_parameters(optimizer)):
            self._tally.add(clip.location, run.step + 1)

    def observe(self, run: Script) -> Iterator[Problem]:
        tally = self._tally
        if tally.is_usual:
            yield tally.report(
                f"The gradients of {tally.mistakes} of {tally.checked} steps were clipped while "
                "they were multiplied with the scale of the GradScaler.",
                {"mistakes": tally.mistakes, "steps": tally.checked},
            )
