"""What the events of a run record, read in one pass."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surestep.engine.value import Metrics
from surestep.record.history import Column, FinalResult, History
from surestep.record.log_points import LogPoints, read_in_bulk
from surestep.record.schemas import UNDOING

_ALWAYS = ("time", "train/loss", "grad_norm", "lr")  # columns of each run, in this order
_LOG_POINT = ("epoch", "time", "items", "samples", "seconds", "data_wait_s", "peak_memory")
_STARTS = ("resume", "restart")  # of another process
_LARGE = ("histograms", "decision_regions")  # events
_LAYERS = {"grad_norm", "weight_norm", "update_norm"}


class _Values:
    """Values that some steps have, in order; None is not a value."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")

    def extend(self, steps: Any, values: Any) -> None:
        """Add the values of later steps."""
        _extend(self.steps, steps)
        _extend(self.values, values)

    def undo(self, step: int) -> None:
        """Forget what is after a step."""
        at = bisect_right(self.steps, step)
        del self.steps[at:], self.values[at:]

    def build(self) -> Column:
        """Return the steps and their values."""
        return Column(np.array(self.steps), np.array(self.values))


class _Series:
    """Values of the first steps of all, of which some may be unknown."""

    def __init__(self) -> None:
        self.values, self.unknown = array("d"), array("q")  # the indices of these

    def extend(self, values: Any, start: int) -> None:
        """Add the values of the steps from an index on; those before it that lack are unknown."""
        self.unknown.extend(range(len(self.values), start))
        self.values.extend(repeat(math.nan, start - len(self.values)))
        if isinstance(values, list):
            self.unknown.extend(at for at, value in enumerate(values, start) if value is None)
        _extend(self.values, values)

    def cut(self, count: int) -> None:
        """Forget all but the first values."""
        del self.values[count:], self.unknown[bisect_left(self.unknown, count) :]

    def build(self, rows: NDArray[np.int64]) -> Column:
        """Return the known values and their rows, of those of all steps."""
        rows, values = rows[: len(self.values)], np.array(self.values)
        if self.unknown:
            rows, values = (np.delete(part, np.array(self.unknown)) for part in (rows, values))
        return Column(rows, values)


def _extend(found: array[Any], values: Any) -> None:
    """Add values: an array, or any of numbers, None and text."""
    if isinstance(values, (np.ndarray, array)):
        found.frombytes(np.ascontiguousarray(values, found.typecode).view(np.uint8).data)
    else:
        found.extend(map(_as_number, values) if found.typecode == "d" else values)


def _as_number(value: Any) -> float:
    return math.nan if value is None else float(value)


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
        regions: the event of the decision regions of an evaluation, by its step.
        events: all others but histograms, in order, also those of steps that were repeated.
        seconds: of training, of all steps.
        data_wait_s: seconds of them that waited for data.
        wall_s: from the first event of each process to its last one, in seconds.
    """

    history: History
    trained: NDArray[np.int64]
    log_points: Mapping[str, NDArray[np.float64]]
    layers: Mapping[str, Mapping[str, Column]]
    regions: Mapping[int, Mapping[str, Any]]
    events: Sequence[Mapping[str, Any]]
    seconds: float
    data_wait_s: float
    wall_s: float


class RecordReader:
    """Collects what events record, in their order; None is not a value."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.log_steps = array("q")  # the last of each log point
        self.log_points = {name: array("d") for name in _LOG_POINT}
        self.layers: defaultdict[str, defaultdict[str, _Values]] = defaultdict(
            lambda: defaultdict(_Values)
        )
        self.seconds, self.data_wait_s = array("d", [0.0]), array("d", [0.0])
        self.wall_s = 0.0  # of the processes before
        self.times: list[float] = []  # of the first and the newest event of this one
        self.trained = array("q")  # the steps
        self.dense: defaultdict[str, _Series] = defaultdict(_Series)  # their values
        self.rates: defaultdict[str, _Values] = defaultdict(_Values)
        self.evaluations: dict[int, dict[str, float]] = {}
        self.regions: dict[int, Mapping[str, Any]] = {}
        self.final: list[FinalResult] = []

    def add(self, event: Mapping[str, Any] | LogPoints) -> None:
        """Add the next event, or the next log points."""
        if isinstance(event, LogPoints):
            self.note_time(event.event["time"].max())
            self.add_steps(event.event, event.steps, event.last_steps)
            return
        kind = event["event"]
        if kind in _STARTS:
            self.wall_s, self.times = self.compute_wall(), []
        self.note_time(event.get("time"))
        if kind == "steps" and event["loss"]:
            steps = range(event["first"], event["first"] + len(event["loss"]))
            self.add_steps(event, steps, steps[-1:])
            return
        if kind == "evaluation":
            self.add_evaluation(event)
        elif kind == "decision_regions":
            self.regions[event["step"]] = event
        elif kind in UNDOING:
            self.undo(event["step"])
            self.evaluations = _keep_until(event["step"], self.evaluations)
            self.regions = _keep_until(event["step"], self.regions)
        if kind not in _LARGE:
            self.events.append(event)

    def note_time(self, time: Any) -> None:
        """Note when an event was written, if it is a number; they may come in another order."""
        if isinstance(time, (int, float)) and math.isfinite(time):
            self.times = [min([*self.times[:1], time]), max([*self.times[1:], time])]

    def compute_wall(self) -> float:
        """Return the seconds from the first event of each process to its last one."""
        return self.wall_s + (self.times[1] - self.times[0] if self.times else 0.0)

    def add_steps(self, event: Mapping[str, Any], steps: Any, last_steps: Any) -> None:
        """Add log points, of which the first may repeat steps.

        Args:
            event: of one, or as `LogPoints` has it.
            steps: of all.
            last_steps: of each.
        """

        def as_column(value: Any) -> Any:
            return value if isinstance(value, np.ndarray) else [value] * len(last_steps)

        self.undo(int(steps[0]) - 1)
        before = len(self.trained)
        _extend(self.trained, steps)
        logged = {f"train/{name}": values for name, values in event.get("logged", {}).items()}
        if "train/loss" in logged:
            logged["train/logged_loss"] = logged.pop("train/loss")
        own = {"train/loss": event["loss"], "grad_norm": event["grad_norm"], "lr": event["lr"]}
        for name, values in (own | logged).items():
            self.dense[name].extend(values[: len(steps)], before)
        for name, rate in event.get("group_lr", {}).items():
            self.rates[f"lr/{name}"].extend(last_steps, as_column(rate))
        _extend(self.log_steps, last_steps)
        for name, values in self.log_points.items():
            _extend(values, as_column(event.get(name)))
        _extend(self.seconds, as_column(event["seconds"]))
        _extend(self.data_wait_s, as_column(event["data_wait_s"]))
        norms = event.get("layers", {})
        for kind in _LAYERS & norms.keys():
            for name, value in norms[kind].items():
                self.layers[kind][name].extend(as_column(norms["step"]), as_column(value))

    def undo(self, step: int) -> None:
        """Forget the steps after one."""
        if self.trained and self.trained[-1] > step:
            count = bisect_right(self.trained, step)
            del self.trained[count:]
            for series in self.dense.values():
                series.cut(count)
            for column in (*self.rates.values(), *chain(*map(dict.values, self.layers.values()))):
                column.undo(step)
            count = bisect_right(self.log_steps, step)
            del self.log_steps[count:]
            for values in self.log_points.values():
                del values[count:]

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
        points = {name: np.array(values) for name, values in self.log_points.items()}
        return Records(
            self.build_history(),
            np.array(self.trained),
            {"step": np.array(self.log_steps, dtype=np.float64), **points},
            {
                kind: {name: column.build() for name, column in by_name.items()}
                for kind, by_name in self.layers.items()
            },
            dict(self.regions),
            tuple(self.events),
            float(np.add.accumulate(self.seconds)[-1]),  # as one after the other
            float(np.add.accumulate(self.data_wait_s)[-1]),
            float(self.compute_wall()),
        )

    def build_history(self) -> History:
        """Return the steps and evaluations so far."""
        trained = steps = np.array(self.trained)
        rows = np.arange(len(trained))
        if other := [step for step in self.evaluations if not _has(self.trained, step)]:
            steps = np.union1d(trained, np.array(other))
            rows = np.searchsorted(steps, trained)
        columns: dict[str, Column] = {}
        for name, series in self.dense.items():
            columns[name] = series.build(rows)
        sparse = defaultdict(_Values, {"time": _Values(), **deepcopy(self.rates)})
        sparse["time"].extend(self.log_steps, self.log_points["time"])
        for step, metrics in self.evaluations.items():
            for name, value in metrics.items():
                sparse[name].extend([step], [value])
        for name, column in sparse.items():
            columns[name] = Column(np.searchsorted(steps, column.steps), np.array(column.values))
        none = Column(np.array([], dtype=np.int64), np.array([]))
        found = {name: column for name, column in columns.items() if len(column.rows)}
        columns = dict.fromkeys(_ALWAYS, none) | found
        return History(steps, columns, tuple(self.final))


def read_records(events: Iterable[Mapping[str, Any] | LogPoints]) -> Records:
    """Return what the events of a run record.

    Args:
        events: of `read_events`, or, which is many times as fast, of `read_in_bulk`.
    """
    reader = RecordReader()
    for event in events:
        reader.add(event)
    return reader.build()


def load_records(folder: Path) -> Records:
    """Return what the events of a run folder record.

    Raises:
        RunError: the file is missing, cannot be read, or is of a newer surestep.
    """
    return read_records(read_in_bulk(folder / "events.jsonl"))


def _keep_until(step: int, found: dict[int, Any]) -> dict[int, Any]:
    """Return what is not after a step."""
    return {at: value for at, value in found.items() if at <= step}


def _has(steps: array[int], step: int) -> bool:
    at = bisect_left(steps, step)
    return at < len(steps) and steps[at] == step


def _as_value(value: Any) -> Any:
    """Return a number, which is text if it is not finite, or a table."""
    return value if isinstance(value, list) else float(value)
