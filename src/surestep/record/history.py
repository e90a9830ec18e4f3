"""The history of a run: a table of its steps and evaluations, read from its events."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surestep.base.errors import ConfigError, suggest_names
from surestep.engine.value import Metrics
from surestep.record.schemas import UNDOING

if TYPE_CHECKING:
    from pandas import DataFrame

_ALWAYS = ("time", "train/loss", "grad_norm", "lr")  # columns of each run, in this order


class FinalResult(NamedTuple):
    """An evaluation of a checkpoint, such as that of the test split after training.

    Attributes:
        step: the step of the checkpoint.
        which: "best", "last" or "average".
        time: when it was measured, in seconds since 1970.
        metrics: numbers by "split/metric", and `.tables`.
    """

    step: int
    which: str
    time: float
    metrics: Metrics


class _Column(NamedTuple):
    """The rows that have a value, and their values."""

    rows: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class History(Mapping[str, NDArray[Any]]):
    """The steps and evaluations of a run as numpy arrays by name, with a row per step.

    "step" has integers, and the other columns 64-bit numbers, which are NaN if nothing was
    recorded: "train/loss", "grad_norm", "lr" and what the Task logged ("train/NAME") of each step;
    "val/loss" and so on of each evaluation while training; at the last step of each log point
    "time", in seconds since 1970, and "lr/GROUP" if groups differ. Steps that were repeated after a
    resume or a rollback count once.

    Attributes:
        steps: the column "step".
        columns: of each other column, the rows with a value, and these values.
        final: the evaluations of checkpoints, such as those of the test split after training. They
            are not in the columns.
    """

    steps: NDArray[np.int64]
    columns: Mapping[str, _Column]
    final: tuple[FinalResult, ...]

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name == "step":
            return self.steps
        if name not in self.columns:
            raise KeyError(f"There is no column {name!r}. {suggest_names(str(name), self)}")
        rows, values = self.columns[name]
        column = np.full(len(self.steps), np.nan)
        column[rows] = values
        return column

    def __iter__(self) -> Iterator[str]:
        yield "step"
        yield from self.columns

    def __len__(self) -> int:
        return 1 + len(self.columns)

    def rows(self) -> Iterator[dict[str, str]]:
        """Return the rows as text by column; a value that was not recorded is "".

        Yields:
            The rows, in order.
        """
        known = {
            name: dict(zip(rows.tolist(), map(str, values.tolist()), strict=True))
            for name, (rows, values) in self.columns.items()
        }
        for row, step in enumerate(self.steps.tolist()):
            yield {"step": str(step)} | {name: cells.get(row, "") for name, cells in known.items()}

    def to_pandas(self) -> DataFrame:
        """Return the columns as a DataFrame of pandas.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ConfigError("to_pandas() needs pandas. Run: pip install pandas") from error
        return DataFrame(dict(self))


class _LogPoint(NamedTuple):
    """What was recorded of consecutive steps, by column, and at the last of them."""

    first: int
    series: Mapping[str, Sequence[Any]]
    at_last: Mapping[str, Any]

    @property
    def steps(self) -> range:
        return range(self.first, self.first + len(self.series["train/loss"]))

    def until(self, step: int) -> _LogPoint:
        """Return what was recorded of the steps up to one."""
        if step >= self.steps[-1]:
            return self
        count = step - self.first + 1
        series = {name: values[:count] for name, values in self.series.items()}
        return _LogPoint(self.first, series, {})


def read_history(events: Iterable[Mapping[str, Any]]) -> History:
    """Return the history that the events of a run record."""
    points: list[_LogPoint] = []
    evaluations: dict[int, dict[str, float]] = {}
    final = []
    for event in events:
        kind = event["event"]
        if kind == "steps" and event["loss"]:
            points = _until(points, event["first"] - 1)
            points.append(_read_log_point(event))
        elif kind == "evaluation":
            known = {name: value for name, value in event["metrics"].items() if value is not None}
            metrics = Metrics({name: _as_value(value) for name, value in known.items()})
            if "which" in event:
                final.append(FinalResult(event["step"], event["which"], event["time"], metrics))
            else:
                evaluations.setdefault(event["step"], {}).update(metrics, time=event["time"])
        elif kind in UNDOING:
            points = _until(points, event["step"])
            evaluations = {at: found for at, found in evaluations.items() if at <= event["step"]}
    return _build(points, evaluations, tuple(final))


def _as_value(value: Any) -> Any:
    """Return a number, which is text if it is not finite, or a table."""
    return value if isinstance(value, list) else float(value)


def _until(points: list[_LogPoint], step: int) -> list[_LogPoint]:
    if not points or points[-1].steps[-1] <= step:
        return points
    return [point.until(step) for point in points if point.first <= step]


def _read_log_point(event: Mapping[str, Any]) -> _LogPoint:
    series = {"train/loss": event["loss"], "grad_norm": event["grad_norm"], "lr": event["lr"]}
    for name, values in event.get("logged", {}).items():
        series["train/logged_loss" if name == "loss" else f"train/{name}"] = values
    rates = {f"lr/{name}": rate for name, rate in event.get("group_lr", {}).items()}
    return _LogPoint(event["first"], series, {"time": event["time"], **rates})


def _build(
    points: Sequence[_LogPoint],
    evaluations: Mapping[int, Mapping[str, float]],
    final: tuple[FinalResult, ...],
) -> History:
    found = {name: (array("q"), array("d")) for name in _ALWAYS}  # steps and values of each column

    def put(name: str, steps: Iterable[int], values: Iterable[Any]) -> None:
        column = found.setdefault(name, (array("q"), array("d")))
        for step, value in zip(steps, values, strict=False):
            if value is not None:
                column[0].append(step)
                column[1].append(float(value))

    for point in points:
        for name, values in point.series.items():
            put(name, point.steps, values)
        for name, value in point.at_last.items():
            put(name, point.steps[-1:], (value,))
    for step, metrics in evaluations.items():
        for name, value in metrics.items():
            put(name, (step,), (value,))
    trained = [np.arange(point.steps.start, point.steps.stop) for point in points]
    steps = np.unique(np.concatenate([*trained, np.array(list(evaluations), dtype=np.int64)]))
    columns = {
        name: _Column(np.searchsorted(steps, np.array(at)), np.array(values))
        for name, (at, values) in found.items()
    }
    return History(steps, columns, final)
