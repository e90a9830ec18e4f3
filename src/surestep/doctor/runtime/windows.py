"""What happens to the gradients of an optimizer between two of its steps.

`surestep watch` records it once for all rules, in the steps that are sampled. A rule about the
order of calls derives from `WindowWatcher` and says which windows are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.parameters import iter_parameters
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


class GradientEvent(NamedTuple):
    """Something that changed the gradients of an optimizer, or that should have.

    Attributes:
        kind: "backward" if the pass reached its parameters, "other" if it did not; "zero", "clip",
            "unscale"; "write" if the script changed gradients or parameters itself.
        location: of the call.
    """

    kind: str
    location: Location


@dataclass
class Window:
    """The events between two steps of an optimizer.

    Attributes:
        began_at: steps of all optimizers before it.
        events: in their order; only the first ones of very many.
        is_whole: whether it was recorded from its beginning to its step.
        is_first: whether no step of the optimizer came before it.
        has_closure: whether the step called a closure with a backward pass.
    """

    began_at: int = 0
    events: list[GradientEvent] = field(default_factory=list)
    is_whole: bool = False
    is_first: bool = False
    has_closure: bool = False

    def find_last(self, kind: str) -> int:
        """Return the index of the last event of a kind; -1 without one."""
        return max((i for i, event in enumerate(self.events) if event.kind == kind), default=-1)

    def list_kind(self, kind: str) -> list[GradientEvent]:
        """Return the events of a kind."""
        return [event for event in self.events if event.kind == kind]

    def find_repeated_backward(self) -> GradientEvent | None:
        """Return the backward pass that one line ran several times, if no other line ran one."""
        backwards = [event for event in self.events if event.kind in ("backward", "other")]
        is_one_line = len({event.location for event in backwards}) == 1
        is_repeated = len(backwards) > 1 and is_one_line and not self.list_kind("other")
        return backwards[-1] if is_repeated else None

    def find_unused_clip(self) -> GradientEvent | None:
        """Return a clip before any backward pass, if none comes after one."""
        first = next((i for i, event in enumerate(self.events) if event.kind == "backward"), None)
        if first is None or any(event.kind == "clip" for event in self.events[first:]):
            return None
        return next((event for event in self.events if event.kind == "clip"), None)


@dataclass
class GradientHistory:
    """What is known of an optimizer.

    Attributes:
        probes: some of its parameters, by which changes are noticed.
        current: the events since its last step.
        last: those before that step; None before the first.
        is_reached: whether a backward pass ever gave its parameters a gradient.
    """

    probes: list[Tensor]
    current: Window
    last: Window | None = None
    is_reached: bool = False
    versions: tuple[object, ...] | None = None
    is_stepping: bool = False


class WindowWatcher(Watcher):
    """A rule about the order of the calls between two steps of an optimizer."""

    SAMPLED: tuple[str, ...] = ("after_step",)

    def __init__(self) -> None:
        self.tallies: list[Tally] = []
        self._tally_of: WeakKeyDictionary[Optimizer, Tally] = WeakKeyDictionary()

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        """Add a step to the tally if its window is wrong."""

    def judge_closure(self, run: Script, optimizer: Optimizer, tally: Tally) -> None:
        """Add a step with a closure to the tally if it is wrong."""

    def describe(self, tally: Tally) -> str:
        """Return the message for an optimizer whose steps are usually wrong."""
        raise NotImplementedError

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        history = run.histories.get(optimizer)
        window = history.last if history is not None else None
        if window is None or not window.is_whole:
            return
        tally = self._tally_of.get(optimizer)
        if tally is None:
            tally = self._tally_of[optimizer] = Tally()
            self.tallies.append(tally)
        if window.has_closure:
            self.judge_closure(run, optimizer, tally)
        else:
            tally.checked += 1
            self.judge(run, optimizer, window, tally)

    def observe(self, run: Script) -> Iterator[Problem]:
        for tally in self.tallies:
            if tally.is_usual:
                evidence = {"mistakes": tally.mistakes, "steps": tally.checked}
                yield tally.report(self.describe(tally), evidence)


def has_gradient(optimizer: Optimizer) -> bool:
    """Return whether a parameter of an optimizer has a gradient now."""
    return any(p.grad is not None for p in iter_parameters(optimizer))


def pick_probes(
    optimizer: Optimizer, is_wanted: Callable[[Tensor], bool], count: int = 4
) -> list[Tensor]:
    """Return some parameters of an optimizer: the first, the last and others between them."""
    found = [p for p in iter_parameters(optimizer) if is_wanted(p)]
    if len(found) <= count:
        return found
    return [found[i * (len(found) - 1) // (count - 1)] for i in range(count)]
