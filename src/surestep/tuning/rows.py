"""A trial as the tables show it, as a worker runs it, and as the others watch it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

MEASURED_OPTIONS = ("optim.lr",)  # which a trial measures before its first step, if it is "find"

TrialState = Literal["finished", "pruned", "failed", "running", "waiting"]


@dataclass(frozen=True)
class TrialRow:
    """A trial in one row.

    Attributes:
        number: of the trial, from 0.
        state: "waiting" is one that was handed back, or whose worker died; it will be resumed.
        params: value of each option of the space; empty if they are not chosen yet.
        values: of the objectives, if it is finished.
        intermediate: the first objective by the number of the evaluation, from 1.
        seconds: how long its processes ran, if that is known.
        evaluations: how many evaluations were reported.
        run: name of its run folder in `trials/`; None if it has none.
        reason: why it is pruned, failed or waiting, or which trial it repeats; else "".
        same_as: number of the earlier trial with the same values, whose result it has.
        measured: metrics of its best evaluation, "seconds", "parameters" and "peak_memory", and
            the values of MEASURED_OPTIONS that it found.
        is_feasible: it violates no constraint, or has not ended.
    """

    number: int
    state: TrialState
    params: dict[str, Any]
    values: tuple[float, ...] | None
    intermediate: dict[int, float]
    seconds: float | None
    evaluations: int
    run: str | None
    reason: str
    same_as: int | None = None
    measured: dict[str, float] = field(default_factory=dict)
    is_feasible: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """The value of each option of the space, and of those that the trial measured."""
        return self.params | {
            name: self.measured[name] for name in MEASURED_OPTIONS if name in self.measured
        }


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this worker runs.

    Attributes:
        number: of the trial, from 0.
        params: value of each option of the space.
        run: name of its run folder in `trials/`.
        retries: how often a worker that ran it died since its newest checkpoint.
        trial_id: of Optuna's storage.
        seconds: how long its earlier processes took, as far as that is known.
    """

    number: int
    params: dict[str, Any]
    run: str
    retries: int
    trial_id: int
    seconds: float = 0.0


@dataclass
class Observer:
    """Watches the heartbeats of running trials, by the clock of this process.

    Attributes:
        grace_s: a trial without a heartbeat for this long is stale.
        clock: seconds that only increase.
    """

    grace_s: float = 60.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._seen: dict[int, tuple[Any, float]] = {}  # by trial: its counter, since when

    def is_stale(self, trial_id: int, counter: Any) -> bool:
        """Note the counter of a trial; return whether it has not changed for `grace_s`."""
        now = self.clock()
        before, since = self._seen.get(trial_id, (None, now))
        if trial_id not in self._seen or before != counter:
            self._seen[trial_id] = (counter, now)
            return False
        return now - since > self.grace_s
