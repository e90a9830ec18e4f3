"""The history of a run: a table of its steps and evaluations, read from its events."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
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


class _Sparse(NamedTuple):
    """Values of some steps, in order."""

    steps: list[int]
    values: list[Any]

    def undo(self, step: int) -> None:
        """Forget what is after a step."""
        at = bisect_right(self.steps, step)
        del self.steps[at:], self.values[at:]


class _Reader:
    """Collects what events record, in their order; None is not a value."""

    def __init__(self) -> None:
        self.trained: list[int] = []  # the steps
        self.dense: dict[str, list[Any]] = {}  # their values; those at the end may lack
        self.sparse: defaultdict[str, _Sparse] = defaultdict(lambda: _Sparse([], []))
        self.evaluations: dict[int, dict[str, float]] = {}
        self.final: list[FinalResult] = []

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
            self.sparse[name].steps.append(self.trained[-1])
            self.sparse[name].values.append(value)

    def undo(self, step: int) -> None:
        """Forget the steps after one."""
        if self.trained and self.trained[-1] > step:
            at = bisect_right(self.trained, step)
            del self.trained[at:]
            for values in self.dense.values():
                del values[at:]
            for column in self.sparse.values():
                column.undo(step)

    def add_evaluation(self, event: Mapping[str, Any]) -> None:
        """Add an evaluation while training, or of a checkpoint."""
        known = {name: value for name, value in event["metrics"].items() if value is not None}
        metrics = Metrics({name: _as_value(value) for name, value in known.items()})
        if "which" in event:
            self.final.append(FinalResult(event["step"], event["which"], event["time"], metrics))
        else:
            self.evaluations.setdefault(event["step"], {}).update(metrics, time=event["time"])

    def build(self) -> History:
        """Return the history."""
        steps = np.array(self.trained, dtype=np.int64)
        if other := self.evaluations.keys() - set(self.trained):
            steps = np.union1d(steps, np.array(list(other)))
        rows = np.searchsorted(steps, self.trained)
        columns: dict[str, _Column] = {}
        for name, values in self.dense.items():
            column = np.array(values, dtype=np.float64)  # None is NaN
            at = rows[: len(values)]
            if None in values:
                has = np.array([value is not None for value in values])
                at, column = at[has], column[has]
            columns[name] = _Column(at, column)
        for step, metrics in self.evaluations.items():
            for name, value in metrics.items():
                self.sparse[name].steps.append(step)
                self.sparse[name].values.append(value)
        for name, (at_steps, values) in self.sparse.items():
            at = np.searchsorted(steps, at_steps)
            columns[name] = _Column(at, np.array(values, dtype=np.float64))
        none = _Column(np.array([], dtype=np.int64), np.array([]))
        found = {name: column for name, column in columns.items() if len(column.rows)}
        columns = dict.fromkeys(_ALWAYS, none) | found
        return History(steps, columns, tuple(self.final))


def read_history(events: Iterable[Mapping[str, Any]]) -> History:
    """Return the history that the events of a run record."""
    reader = _Reader()
    for event in events:
        kind = event["event"]
        if kind == "steps" and event["loss"]:
            reader.add_steps(event)
        elif kind == "evaluation":
            reader.add_evaluation(event)
        elif kind in UNDOING:
            reader.undo(event["step"])
            found = reader.evaluations
            reader.evaluations = {at: found[at] for at in found if at <= event["step"]}
    return reader.build()


def _as_value(value: Any) -> Any:
    """Return a number, which is text if it is not finite, or a table."""
    return value if isinstance(value, list) else float(value)
