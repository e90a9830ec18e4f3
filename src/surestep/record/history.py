"""The history of a run: a table of its steps and evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surestep.base.errors import ConfigError, suggest_names
from surestep.engine.value import Metrics

if TYPE_CHECKING:
    from pandas import DataFrame


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


class Column(NamedTuple):
    """Values that some rows have.

    Attributes:
        rows: indices of the rows, in order, (n,).
        values: (n,).
    """

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
    columns: Mapping[str, Column]
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
