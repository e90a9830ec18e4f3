"""Records what happens to the gradients of each optimizer, in the steps that are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import NOWHERE
from surestep.doctor.runtime.windows import GradientEvent, GradientHistory, Window, pick_probes
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

WINDOWS = "windows"  # the name of the recorder among the rules
_MOST_EVENTS = 128  # in a window
_MOST_OPTIMIZERS = 16  # that are alive together


class WindowRecorder(Watcher):
    """Fills `run.histories`; it is called before the rules."""

    SAMPLED = (
        *("on_zero_grad", "after_zero_grad", "on_backward", "after_backward", "on_clip"),
        "on_unscale",
    )

    def __init__(self) -> None:
        self._backward = NOWHERE

    def on_new_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        if len(run.histories) < _MOST_OPTIMIZERS:
            probes = pick_probes(optimizer, lambda parameter: parameter.requires_grad)
            began_at = max(run.step, run.sampled_since)  # nothing of it was before
            run.histories[optimizer] = GradientHistory(probes, Window(began_at, is_first=True))

    def on_zero_grad(self, run: Script, parameters: Sequence[Tensor]) -> None:
        for history in self._find(run, parameters):
            _notice_writes(history)

    def after_zero_grad(self, run: Script, parameters: Sequence[Tensor]) -> None:
        location = run.locate()
        for history in self._find(run, parameters):
            _add(history, GradientEvent("zero", location))

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        self._backward = run.locate()
        for history in list(run.histories.values()):
            _notice_writes(history)

    def after_backward(self, run: Script, losses: Sequence[Tensor]) -> None:
        for history in list(run.histories.values()):
            is_reached = _read_versions(history) != history.versions
            history.is_reached |= is_reached
            if history.is_stepping and history.last is not None:
                history.last.has_closure |= is_reached
            _add(history, GradientEvent("backward" if is_reached else "other", self._backward))

    def on_clip(
        self, run: Script, parameters: Sequence[Tensor], limit: float, norm: Tensor | None
    ) -> None:
        if not isfinite(limit):  # without a limit, the norm is only measured
            return
        location, most_writes = run.locate(), 2 if norm is None else 1
        for history in self._find(run, parameters):
            if _count_writes(history) > most_writes:
                _add(history, GradientEvent("write", NOWHERE))
            _add(history, GradientEvent("clip", location))

    def on_unscale(self, run: Script, scaler: Any, optimizer: Optimizer) -> None:
        history = run.histories.get(optimizer)
        if history is not None:
            _notice_writes(history)
            _add(history, GradientEvent("unscale", run.locate()))
            history.versions = None  # it is about to change them

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        history = run.histories.get(optimizer)
        if history is None:
            return
        window = history.last = history.current
        if run.is_sampled:
            _notice_writes(history)
            window.is_whole = window.began_at >= run.sampled_since
            if all(p.grad is None for p in history.probes):
                with_gradient = pick_probes(optimizer, lambda p: p.grad is not None)
                history.probes = with_gradient or history.probes
        history.is_stepping = True

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        history = run.histories.get(optimizer)
        if history is not None:
            history.current = Window(began_at=run.step)
            history.versions, history.is_stepping = None, False

    def _find(self, run: Script, parameters: Sequence[Tensor]) -> list[GradientHistory]:
        """Return the histories of the optimizers of some parameters."""
        given = set(map(id, parameters))
        return [
            history
            for history in list(run.histories.values())
            if any(id(probe) in given for probe in history.probes)
        ]


def _read_versions(history: GradientHistory) -> tuple[object, ...]:
    """Return what changes when a gradient or a parameter is replaced or written."""
    return tuple(
        (p._version, None) if p.grad is None else (p._version, id(p.grad), p.grad._version)
        for p in history.probes
    )


def _notice_writes(history: GradientHistory) -> None:
    """Add an event if the script changed a gradient or a parameter since the last event."""
    versions = _read_versions(history)
    if history.versions not in (None, versions):
        _add(history, GradientEvent("write", NOWHERE))
    history.versions = versions


def _count_writes(history: GradientHistory) -> int:
    """Return how often the gradients were written since the last event; 9 if replaced."""
    before, after = history.versions, _read_versions(history)
    if before is None or before == after:
        return 0
    counts = [0]
    for old, new in zip(before, after, strict=True):
        is_same = len(old) == len(new) and old[:2] == new[:2]  # type: ignore[arg-type, index]
        counts.append((new[-1] or 0) - (old[-1] or 0) if is_same else 9)  # type: ignore[index]
    return max(counts)


def _add(history: GradientHistory, event: GradientEvent) -> None:
    history.versions = _read_versions(history)
    if not history.is_stepping and len(history.current.events) < _MOST_EVENTS:
        history.current.events.append(event)
