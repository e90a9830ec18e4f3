"""What the events of a run record, read in one pass."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surestep.engine.value import Metrics
from surestep.record.history import Column, FinalResult, History
from surestep.record.schemas import UNDOING

_ALWAYS = ("time", "train/loss", "grad_norm", "lr")  # columns of each run, in this order
_LOG_POINT = ("epoch", "time", "items", "samples", "seconds", "data_wait_s", "peak_memory")
_LAYERS = {"grad_norm", "weight_norm", "update_norm"}


class _Sparse(NamedTuple):
    """Values of some steps, in order."""

    steps: list[int]
    values: list[Any]

    @classmethod
    def empty(cls) -> _Sparse:
        """Return one without values."""
        return cls([], [])

    def add(self, step: int, value: Any) -> None:
        """Add the value of a later step."""
        self.steps.append(step)
        self.values.append(value)

    def undo(self, step: int) -> None:
        """Forget what is after a step."""
        at = bisect_right(self.steps, step)
        del self.steps[at:], self.values[at:]

    def build(self) -> Column:
        """Return the steps and their values."""
        return Column(np.array(self.steps, dtype=np.int64), np.array(self.values, dtype=float))


@dataclass(frozen=True, eq=False)
class Records:
    """What the events of a run record.

    Steps that were repeated after a resume or a rollback count once, except in the totals.

    Attributes:
        history: the steps and evaluations.
        trained: the steps that were taken or skipped, without those that only have an evaluation.
        log_points: "step" (the last of each), "epoch", "time" in seconds since 1970, "items",
            "samples", "seconds" of training, "data_wait_s" of them, and "peak_memory" in bytes;
            each (n,), NaN if it was not recorded.
        layers: "grad_norm", "weight_norm" and "update_norm" of each layer, by its name; its
            rows are steps.
        events: all others but histograms, in order, also those of steps that were repeated.
        seconds: of training, of all steps.
        data_wait_s: seconds of them that waited for data.
    """

    history: History
    trained: NDArray[np.int64]
    log_points: Mapping[str, NDArray[np.float64]]
    layers: Mapping[str, Mapping[str, Column]]
    events: Sequence[Mapping[str, Any]]
    seconds: float
    data_wait_s: float


class RecordReader:
    """Collects what events record, in their order; None is not a value."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.log_points: list[tuple[Any, ...]] = []
        self.layers: defaultdict[str, defaultdict[str, _Sparse]] = defaultdict(
            lambda: defaultdict(_Sparse.empty)
        )
        self.seconds = self.data_wait_s = 0.0
        self.trained: list[int] = []  # the steps
        self.dense: dict[str, list[Any]] = {}  # their values; those at the end may lack
        self.sparse: defaultdict[str, _Sparse] = defaultdict(_Sparse.empty)
        self.evaluations: dict[int, dict[str, float]] = {}
        self.final: list[FinalResult] = []

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event."""
        kind = event["event"]
        if kind == "steps" and event["loss"]:
            self.add_steps(event)
            return
        if kind == "evaluation":
            self.add_evaluation(event)
        elif kind in UNDOING:
            self.undo(event["step"])
            found = self.evaluations
            self.evaluations = {at: found[at] for at in found if at <= event["step"]}
        if kind != "histograms":  # they are large
            self.events.append(event)

    def add_steps(self, event: Mapping[str, Any]) -> None:
        """Add a log point, which may repeat steps."""
        first, count = event["first"], len(event["loss"])
        self.undo(first - 1)
        before = len(self.trained)
        self.trained.extend(range(first, first + count))
        logged = {f"train/{name}": values for name, values in event.get("logged", {}).items()}
        if "train/loss" in logged:
            logged["train/logged_loss"] = logged.pop("train/loss")
        own = {"train/loss": event["loss"], "grad_norm": event["grad_norm"], "lr": event["lr"]}
        for name, values in (own | logged).items():
            column = self.dense.setdefault(name, [])
            column.extend([None] * (before - len(column)))
            column.extend(values[:count])
        rates = {f"lr/{name}": rate for name, rate in event.get("group_lr", {}).items()}
        for name, value in {"time": event["time"], **rates}.items():
            self.sparse[name].add(self.trained[-1], value)
        self.log_points.append((self.trained[-1], *map(event.get, _LOG_POINT)))
        self.seconds += event["seconds"]
        self.data_wait_s += event["data_wait_s"]
        norms = event.get("layers", {})
        for kind in _LAYERS & norms.keys():
            for name, value in norms[kind].items():
                self.layers[kind][name].add(norms["step"], value)

    def undo(self, step: int) -> None:
        """Forget the steps after one."""
        if self.trained and self.trained[-1] > step:
            at = bisect_right(self.trained, step)
            del self.trained[at:]
            for values in self.dense.values():
                del values[at:]
            for column in (*self.sparse.values(), *chain(*map(dict.values, self.layers.values()))):
                column.undo(step)
            while self.log_points and self.log_points[-1][0] > step:
                self.log_points.pop()

    def add_evaluation(self, event: Mapping[str, Any]) -> None:
        """Add an evaluation while training, or of a checkpoint."""
        known = {name: value for name, value in event["metrics"].items() if value is not None}
        metrics = Metrics({name: _as_value(value) for name, value in known.items()})
        if "which" in event:
            self.final.append(FinalResult(event["step"], event["which"], event["time"], metrics))
        else:
            self.evaluations.setdefault(event["step"], {}).update(metrics, time=event["time"])

    def build(self) -> Records:
        """Return what was recorded so far."""
        points = np.array(self.log_points, dtype=np.float64).reshape(-1, 1 + len(_LOG_POINT))
        return Records(
            self.build_history(),
            np.array(self.trained, dtype=np.int64),
            dict(zip(("step", *_LOG_POINT), points.T, strict=True)),
            {
                kind: {name: column.build() for name, column in by_name.items()}
                for kind, by_name in self.layers.items()
            },
            tuple(self.events),
            self.seconds,
            self.data_wait_s,
        )

    def build_history(self) -> History:
        """Return the steps and evaluations so far."""
        steps = np.array(self.trained, dtype=np.int64)
        if other := self.evaluations.keys() - set(self.trained):
            steps = np.union1d(steps, np.array(list(other)))
        rows = np.searchsorted(steps, self.trained)
        columns: dict[str, Column] = {}
        for name, values in self.dense.items():
            column = np.array(values, dtype=np.float64)  # None is NaN
            at = rows[: len(values)]
            if None in values:
                has = np.array([value is not None for value in values])
                at, column = at[has], column[has]
            columns[name] = Column(at, column)
        for step, metrics in self.evaluations.items():
            for name, value in metrics.items():
                self.sparse[name].add(step, value)
        for name, (at_steps, values) in self.sparse.items():
            at = np.searchsorted(steps, at_steps)
            columns[name] = Column(at, np.array(values, dtype=np.float64))
        none = Column(np.array([], dtype=np.int64), np.array([]))
        found = {name: column for name, column in columns.items() if len(column.rows)}
        columns = dict.fromkeys(_ALWAYS, none) | found
        return History(steps, columns, tuple(self.final))


def read_records(events: Iterable[Mapping[str, Any]]) -> Records:
    """Return what the events of a run record."""
    reader = RecordReader()
    for event in events:
        reader.add(event)
    return reader.build()


def _as_value(value: Any) -> Any:
    """Return a number, which is text if it is not finite, or a table."""
    return value if isinstance(value, list) else float(value)
