"""No gradient is zeroed between two steps of the optimizer.

`backward()` adds to the gradients that are there. Without `zero_grad()`, each step uses the sum of
the gradients of all batches so far, so the steps grow and no longer follow the loss. Nothing fails:
the loss may even fall at first.

Ignore it if the sum is wanted, which is rare. Deliberate accumulation over several batches is not
reported: it zeroes the gradients after its step.

Source: https://docs.pytorch.org/docs/stable/optim.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import ref

from surestep.base.text import format_count
from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.parameters import iter_parameters
from surestep.doctor.runtime.tally import FEWEST, Tally
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import Action, find_actions, is_optimizer, may_be_same
from surestep.doctor.source.values import Function, Instance, is_made_from
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

SEVERITY = "error"
FIX = "Call optimizer.zero_grad() once for each step, before backward() or after step()."
_MOST = 100  # optimizers with the mistake
_ZEROES = re.compile("zero_grad")
_ZEROES_BY_HAND = re.compile(  # beside `p.grad = None` and `p.grad.zero_()`, which are followed
    r"\.grad\b[\w.()]*\.((zero|fill|copy|set)_\(|mul_\(0)|\.grad\.data\s*=[^=]|\.grad\b[\w.]*\[.*\]\s*=[^=]"
    r"|del .*\.grad\b|setattr\(.*grad|_foreach_zero_|lambda.*zero_grad"
)
_ENGINES = ("ignite.engine.Engine", "ignite.engine.engine.Engine")


def check(program: Program) -> Iterator[Problem]:
    """Find loops with a backward pass and a step, but without zeroed gradients."""
    for trace in program.traces:
        actions = find_actions(trace)
        for step in actions:
            if not step.is_step:
                continue
            loop = step.event.loop
            name = "this loop" if loop is not None else _name_step_function(program, step.event)
            if not name:
                continue
            events = {event for event in trace.events if _is_beside(event, step.event)}
            inside = [action for action in actions if action.event in events]
            has_backward = any(action.kind == "backward" for action in inside)
            is_zeroed = any(_zeroes(action, step) for action in inside)
            if not has_backward or is_zeroed or any(_is_given_away(e, step) for e in events):
                continue
            if program.contains(_ZEROES_BY_HAND):
                return
            yield at_event(
                step.event,
                f"`{step.event.text}` uses the gradients of all batches so far: nothing "
                f"in {name} zeroes them.",
                loop_line=None if loop is None else getattr(loop.node, "lineno", None),
            )


def _is_beside(event: Event, step: Event) -> bool:
    """Return whether an event is in the loop of a step, or in its function without a loop."""
    if step.loop is not None:
        return step.loop in event.loops
    return event.stack[:1] == step.stack[:1]


def _name_step_function(program: Program, step: Event) -> str:
    """Return the name of the function in which a library takes the step of each batch.

    It is "" if there is none, or if the script zeroes gradients anywhere: in a hook, for example.
    """
    if not step.stack or program.contains(_ZEROES):
        return ""
    function = step.stack[0]
    owner = function.owner
    bases = owner.cls.outside_bases if isinstance(owner, Instance) else ()
    is_lightning = any(base.endswith(".LightningModule") for base in bases)
    is_step = (is_lightning and function.name == "training_step") or any(
        isinstance(given, Function) and given.definition is function.definition
        for trace in program.traces
        for _, call in trace.calls
        if call.path in _ENGINES
        for given in call.args[:1]
    )
    return f"`{function.name}`" if is_step else ""


def _zeroes(action: Action, step: Action) -> bool:
    """Return whether an action may zero the gradients of a step; `model.zero_grad()` may."""
    return action.kind == "zero_grad" and (
        not is_optimizer(action.target) or may_be_same(action.target, step.target)
    )


def _is_given_away(event: Event, step: Action) -> bool:
    """Return whether a function that is not followed gets the optimizer, and may zero them."""
    call = event.call
    if call is None or step.event is event or call.name in ("step", "unscale_", "print"):
        return False
    return any(is_made_from(arg, step.target) for arg in call.arguments)


@dataclass
class _Seen:
    """What one optimizer did since its gradients were zeroed.

    Attributes:
        optimizer: a weak reference.
        parameters: some of its parameters, by which zeroing by hand is noticed.
        zeroed_at: backward passes when they were zeroed last.
        stepped_at: backward passes at its last step; -1 if it was before the zeroing.
        versions: of the gradients after its last step, or after a later backward pass; None if
            they are not known.
        is_called: whether a call zeroed them since its last step.
        tally: of steps with gradients of batches that were used already; its sizes are numbers of
            batches.
        looks: whether the gradients were 0 although nothing is known to have zeroed them.
    """

    optimizer: ref[Optimizer]
    parameters: list[ref[Tensor]]
    zeroed_at: int = 0
    stepped_at: int = -1
    versions: tuple[object, ...] | None = None
    is_called: bool = False
    tally: Tally = field(default_factory=Tally)
    looks: list[bool] = field(default_factory=list)

    def zero(self, backwards: int) -> None:
        self.zeroed_at, self.stepped_at = backwards, -1

    def is_zero(self) -> bool:
        """Return whether the gradients are 0: `p.grad.data.zero_()` leaves their versions.

        It waits for a device, so what the first looks showed is taken to hold for the rest.
        """
        if len(self.looks) < FEWEST:
            import torch

            parameters = (probe() for probe in self.parameters)
            gradients = [p.grad for p in parameters if p is not None and p.grad is not None]
            is_plain = all(type(g) is torch.Tensor and not g.is_sparse for g in gradients)
            self.looks.append(is_plain and not any(bool(g.any()) for g in gradients))
        return self.looks[-1]


class MissingZeroGradWatcher(Watcher):
    """Count the batches whose gradients each step uses."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by the ids of optimizers, which may have no hash
        self._mistaken: list[Tally] = []

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        used = list(iter_parameters(optimizer))
        known = {key: seen for key, seen in self._seen.items() if seen.optimizer() is not None}
        self._seen = {**known, id(optimizer): _Seen(ref(optimizer), [ref(p) for p in used[:3]])}

    def on_zero_grad(self, run: Script, parameters: Sequence[Tensor]) -> None:
        for seen in self._seen.values():
            probes = [probe() for probe in seen.parameters]
            if any(parameter is probe for parameter in parameters for probe in probes):
                seen.zero(run.backwards)
                seen.is_called = True

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        for seen in self._seen.values():
            is_unknown = seen.versions is None
            if seen.stepped_at >= 0 and (
                is_unknown or _versions(seen.parameters) != seen.versions or seen.is_zero()
            ):
                seen.zero(run.backwards - 1)  # the script may have changed them by hand

    def after_backward(self, run: Script, losses: Sequence[Tensor]) -> None:
        for seen in self._seen.values():
            if seen.stepped_at >= 0:
                seen.versions = _versions(seen.parameters)

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        self._count(run, self._seen[id(optimizer)])

    def _count(self, run: Script, seen: _Seen) -> None:
        if 0 <= seen.stepped_at < run.backwards:
            seen.tally.add_here(run, run.backwards - seen.zeroed_at)
            if seen.tally.mistakes == 1 and len(self._mistaken) < _MOST:
                self._mistaken.append(seen.tally)
            seen.stepped_at = run.backwards  # counted

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        seen = self._seen[id(optimizer)]
        self._count(run, seen)  # backward passes of the closure
        seen.stepped_at = run.backwards
        # Where `zero_grad()` is called, it is called again, and reading the versions takes long.
        is_read = run.is_sampled or not seen.is_called
        seen.versions = _versions(seen.parameters) if is_read else None
        seen.is_called = False

    def observe(self, run: Script) -> Iterator[Problem]:
        for tally in self._mistaken:
            if tally.mistakes >= FEWEST:
                batches = format_count(tally.most, "batch", "batches")
                yield tally.report(
                    f"Gradients grew from {batches}: {tally.mistakes} steps used gradients that an "
                    "earlier step had used already.",
                    {"batches": tally.most, "steps": tally.mistakes},
                )


def _versions(parameters: list[ref[Tensor]]) -> tuple[object, ...]:
    """Return what changes when a gradient is replaced, removed or written."""
    gradients = [None if (found := probe()) is None else found.grad for probe in parameters]
    return tuple(None if g is None else (id(g), g._version) for g in gradients)
