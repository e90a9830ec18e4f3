"""Passes over a DataLoader in which nothing is trained, and one model is called for each batch."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import NOWHERE, Location
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.utils.data import DataLoader

_MOST = 20  # evaluations that are remembered


@dataclass
class Evaluation(Occurrence):
    """An evaluation, as its first batch shows it.

    Attributes:
        loader: that gives its batches.
        since_step: the step that follows its start, from 1.
        backwards: backward passes before it.
        batches: that it had.
        calls: of a model, for the first batch.
        location: of the first call.
        model: its class.
        has_gradient: whether a gradient reached an output of the first call.
    """

    loader: weakref.ref[DataLoader[Any]]
    since_step: int
    backwards: int
    batches: int = 0
    calls: int = 0
    location: Location = NOWHERE
    model: str = ""
    has_gradient: bool = False

    def see_gradient(self, _: Tensor) -> None:
        """Note a gradient, as a hook of an output: all batches are trained on in one pass."""
        self.has_gradient = True


class EvaluationWatcher(Watcher):
    """A rule about evaluations, which counts the calls of a model that show its mistake.

    Passes over the same loader after the same step are samples of the output, with dropout on
    purpose, and not evaluations.
    """

    def __init__(self) -> None:
        self._evaluations: list[Evaluation] = []
        self._current: Evaluation | None = None

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        self._end(run)
        self._current = Evaluation(weakref.ref(loader), run.step + 1, run.backwards)

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        if self._current is not None:
            self._current.batches += 1

    def count_call(self, run: Script, model: str, outputs: Iterable[Tensor] = ()) -> None:
        """Count a call of a model that shows the mistake of a rule, in `after_forward`.

        Args:
            run: of the script.
            model: the name of its class.
            outputs: of the call; if a gradient reaches one later, the call is of training.
        """
        current = self._current
        if current is not None and current.batches == 1:
            current.calls += 1
            if current.calls == 1:
                current.location, current.model = run.locate(), model
                for output in outputs:
                    if output.requires_grad:
                        output.register_hook(current.see_gradient)  # type: ignore[no-untyped-call]

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        self._end(run)

    def _end(self, run: Script) -> None:
        current, self._current = self._current, None
        if current is None or current.calls != 1 or len(self._evaluations) >= _MOST:
            return
        if (run.step + 1, run.backwards) == (current.since_step, current.backwards):
            self._evaluations.append(current)

    def list_evaluations(self, run: Script) -> list[Evaluation]:
        """Return the evaluations, in `observe`."""
        self._end(run)
        keys = [(evaluation.loader, evaluation.since_step) for evaluation in self._evaluations]
        return [
            evaluation
            for evaluation, key in zip(self._evaluations, keys, strict=True)
            if keys.count(key) == 1 and not evaluation.has_gradient
        ]
