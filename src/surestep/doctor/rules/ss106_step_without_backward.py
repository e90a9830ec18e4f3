"""A backward pass has no step, or a step has no backward pass.

Without a backward pass there is no gradient, so `optimizer.step()` changes nothing. Without a step,
the gradients are computed and thrown away. Both are easily written: `optimizer.step` without
parentheses is a valid line, and `zero_grad()` for each batch with a step for every fourth one loses
three of four batches. Nothing fails, but the model learns little or nothing.

Ignore it if another part of the program makes the missing call. A test whose name starts with
`test_` may make only one of both calls.

Source: https://docs.pytorch.org/docs/stable/optim.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))
        optimizer.step()
        print(loss.item())

Right:

    import torch
    from torch import nn

    model = nn.Linear(4, 1)
    warm_up = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(20):
        warm_up.zero_grad()
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        if step > 100:
            warm_up.step()
        else:
            optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from surestep.base.text import format_count
from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.tensors import read_part
from surestep.doctor.runtime.windows import Window, WindowWatcher, has_gradient
from surestep.doctor.source.steps import StepOrder, find_windows, is_zeroed_by
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import (
    is_made_by,
    is_model,
    is_same,
    is_without_grad,
    may_be_same,
)
from surestep.doctor.source.values import Call
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from surestep.doctor.runtime.windows import GradientEvent, GradientHistory

SEVERITY = "error"
FIX = "Call backward() and then step() for each batch, or zero the gradients only after a step."
_FEWEST_LOST = 5  # backward passes of an optimizer that takes no step
_MOST_OPTIMIZERS = 8
_VALUES = 8  # of a parameter, by which a step is noticed


def check(program: Program) -> Iterator[Problem]:
    """Find loops that have only one of both, or that lose batches between two steps."""
    for trace in program.traces:
        order = StepOrder(trace)
        if not order.is_all_clear or program.mentions("grad"):
            continue
        if trace.entry is None or not trace.entry.name.startswith("test_"):  # tests one of both
            yield from _find_steps_alone(order)
            yield from _find_backwards_alone(order)
        yield from _find_lost_batches(order)


def _find_steps_alone(order: StepOrder) -> Iterator[Problem]:
    if any(action.kind == "backward" for action in order.actions):
        return
    for step in order.actions:
        call, loop = step.event.call, step.event.loop
        if call is None or loop is None or call.arguments or step.kind != "step":
            continue
        is_training = any(loop in e.loops and _is_forward(e, c) for e, c in order.trace.calls)
        if is_training and is_made_by(step.target, "torch.optim."):
            yield at_event(
                step.event, f"`{step.event.text}` has no gradient to use: nothing calls backward()."
            )


def _is_forward(event: Event, call: Call) -> bool:
    """Return whether an event is the call of a model that builds a graph."""
    return call.path == "()" and is_model(call.receiver) and not is_without_grad(event)


def _find_backwards_alone(order: StepOrder) -> Iterator[Problem]:
    targets = [action.target for action in order.actions if action.is_step]
    zeroes = [action for action in order.actions if action.kind == "zero_grad"]
    for index, zero in enumerate(zeroes):
        optimizer = zero.target
        if zero.event.loop is None or not is_made_by(optimizer, "torch.optim."):
            continue
        if any(may_be_same(target, optimizer) for target in targets):
            continue
        backward = next((a for a in order.find_pass(zero.event) if a.kind == "backward"), None)
        is_reported = any(is_same(other.target, optimizer) for other in zeroes[:index])
        if backward is not None and not is_reported:
            step = zero.event.text.partition(".zero_grad")[0] + ".step()"
            text = f"`{backward.event.text}` computes gradients, but nothing calls `{step}`."
            yield at_event(backward.event, text)


def _find_lost_batches(order: StepOrder) -> Iterator[Problem]:
    for window in find_windows(order):
        step, backward = window.step, window.backwards[0].event
        for zero in window.actions if window.has_one_step else ():
            event = zero.event
            is_always = event.loops == step.event.loops and window.branch not in event.branches
            is_guarded = len(event.branches) > len(backward.branches)
            is_known = is_zeroed_by(zero, step.target) and not is_guarded
            is_first = order.is_before(event, backward)
            if is_always and is_known and (is_first or order.is_before(step.event, event)):
                yield at_event(
                    event,
                    f"`{event.text}` runs for each batch, but "
                    f"`{step.event.text}` only for one in `{window.text}`: the "
                    "gradients of the others are lost.",
                )


class StepWithoutBackwardWatcher(WindowWatcher):
    """Count steps without a backward pass, and backward passes without a step."""

    SAMPLED = ()  # any step shows that an optimizer steps

    def __init__(self) -> None:
        super().__init__()
        self._forwards = 0
        self._never_stepped: list[tuple[GradientHistory, Tensor, Tensor]] = []

    def on_new_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        import torch

        history = run.histories.get(optimizer)
        if history is None or len(self._never_stepped) >= _MOST_OPTIMIZERS:
            return
        for probe in history.probes[:1]:
            is_plain = type(probe) in (torch.Tensor, torch.nn.Parameter)
            if (is_plain or hasattr(probe, "to_local")) and probe.device.type != "meta":
                self._never_stepped.append((history, probe, read_part(probe, _VALUES).clone()))

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(run.modules) == 1 and module.training:
            import torch

            self._forwards += torch.is_grad_enabled()

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        if self._never_stepped:
            stepped = run.histories.get(optimizer)
            self._never_stepped = [seen for seen in self._never_stepped if seen[0] is not stepped]
        super().after_step(run, optimizer)

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        forwards, self._forwards = self._forwards, 0
        lost = _find_lost(window)
        kinds = {event.kind for event in window.events}
        is_alone = forwards and not kinds & {"backward", "other", "write"}
        # One line may compute the gradients of several optimizers, which step too.
        if lost and len(lost) >= run.step - window.began_at:
            tally.add(lost[0].location, run.step, len(lost))
        elif is_alone and not has_gradient(optimizer):
            tally.add(run.locate(), run.step)

    def describe(self, tally: Tally) -> str:
        steps = f"{tally.mistakes} of {tally.checked} steps"
        if tally.most:
            lost = format_count(tally.most, "batch", "batches")
            return f"In {steps}, the gradients of {lost} were zeroed before a step used them."
        return f"{steps} had no gradient: backward() was not called."

    def observe(self, run: Script) -> Iterator[Problem]:
        yield from super().observe(run)
        for history, parameter, first in self._never_stepped:
            events = [e for e in history.current.events if e.kind in ("backward", "zero")]
            lost = len(_find_zeroed(events))
            # A parameter that changes has another optimizer, or is changed by the script.
            if lost >= _FEWEST_LOST and read_part(parameter, _VALUES).equal(first):
                stepped = "although another optimizer took steps" if run.step else "as none did"
                yield Problem(
                    f"The gradients of {lost} backward passes were zeroed, and their optimizer "
                    f"never took a step, {stepped}.",
                    {"backwards": lost},
                    location=history.current.list_kind("backward")[-1].location,
                    since_step=1,
                )


def _find_zeroed(events: list[GradientEvent]) -> list[GradientEvent]:
    """Return the events that zeroed the gradients of the backward pass before them."""
    return [b for a, b in pairwise(events) if (a.kind, b.kind) == ("backward", "zero")]


def _find_lost(window: Window) -> list[GradientEvent]:
    """Return the events that zeroed gradients of which nothing else was done.

    The lines of these backward passes and zeroings must be those of the last ones of a window, so
    that an adversarial example or a part of a GAN is not taken for a lost batch.
    """
    # Between an unscaling and a zeroing, a GradScaler may have skipped the step.
    events = [event for event in window.events if event.kind != "other"]
    is_used = any(event.kind in ("write", "clip") for event in events)
    backwards = window.list_kind("backward")
    is_one_pass = len({event.location for event in backwards + window.list_kind("other")}) == 1
    if is_used or not (backwards and is_one_pass):
        return []
    later = events[events.index(backwards[0]) :]  # what is zeroed before is of the step before
    is_one_line = len({event.location for event in later if event.kind == "zero"}) == 1
    if not (is_one_line and events[-1].kind == "backward"):
        return []
    return _find_zeroed(events)
