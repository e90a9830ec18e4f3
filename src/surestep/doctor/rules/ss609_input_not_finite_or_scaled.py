"""Inputs are not finite, are constant, or have very different scales.

A NaN or an infinite number in a sample makes the loss of its batch NaN. A column with one value
holds no information. If one column is thousands of times larger than another one, a step that
suits the one is too large or too small for the other, so training is slow. To standardize the
columns, with the statistics of the training data, mends it.

Columns are reported of tables of up to 64 columns only, and scales if the model does not begin with
a normalization.

Source: https://developers.google.com/machine-learning/crash-course/numerical-data/normalization

Wrong:

    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[50, 2] = torch.nan
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=2, batch_size=8, data=surestep.Data(shuffle=False))
    surestep.Trainer(task, config, run="run").fit()

Right:

    import torch

    import surestep

    x, y = 1e6 * torch.randn(60, 4), torch.arange(60) % 3
    x = (x - x.mean(0)) / x.std(0)
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.limits import FEWEST_ROWS, OTHER_SCALE, WIDEST_TABLE
from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.tally import LineTally, Occurrence
from surestep.doctor.runtime.tensors import is_tensor
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn


SEVERITY = "warning"
REVIEWED = True
FIX = "Standardize the columns: subtract their mean and divide by their standard deviation."
_MOST_VALUES = 1_000_000  # of an input that is checked
_MOST_TABLES = 20


@dataclass
class _Columns(Occurrence):
    """Sums of the columns of a table, less its first row, so that equal values have no spread.

    Attributes:
        location: of the call of the model.
        since_step: of the first call, from 1.
        first: row.
        total: of each column.
        squares: their sum for each column.
        count: of the rows.
    """

    location: Location
    since_step: int
    first: Tensor
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    count: int = 0

    def add(self, table: Tensor) -> None:
        rows = table.detach().double() - self.first
        self.total, self.squares = self.total + rows.sum(0), self.squares + rows.square().sum(0)
        self.count += len(rows)

    def spread(self) -> list[float]:
        """Return the standard deviations."""
        mean = self.total / self.count
        variance = self.squares / self.count - mean * mean
        deviations: list[float] = variance.clamp(min=0).sqrt().tolist()  # type: ignore[union-attr]
        return deviations


class InputNotFiniteOrScaledWatcher(Watcher):
    """Check what models get, and the columns of a table that a linear layer gets first."""

    def __init__(self) -> None:
        self._tally = LineTally()
        self._tables: WeakKeyDictionary[nn.Module, _Columns] = WeakKeyDictionary()
        self._input: Tensor | None = None  # of the model, until a layer gets it
        self._is_bad: Tensor | None = None

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        given: Any = inputs[0] if inputs else None
        if len(run.modules) == 1:
            self._input = self._is_bad = None
            is_read = run.is_sampled and module.training and is_tensor(given)
            is_data = is_read and given.grad_fn is None  # another model computed nothing of it
            if is_data and given.is_floating_point() and 0 < given.numel() <= _MOST_VALUES:
                self._input = given
                self._is_bad = _has_failed(given)
        if self._input is None or next(module.children(), None) is not None:
            return
        if given is self._input and type(module).__name__ == "Linear":
            self._add_table(run, module, given)
        self._input = None

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if len(run.modules) != 1:
            return
        if self._is_bad is not None and is_tensor(output):
            reason = "its inputs had NaN or infinite values, and so had its outputs"
            self._tally.add(run, reason, self._is_bad & _has_failed(output))
        self._input = self._is_bad = None

    def _add_table(self, run: Script, layer: nn.Module, table: Tensor) -> None:
        if table.dim() != 2 or not 1 < table.shape[1] <= WIDEST_TABLE:
            return
        columns = self._tables.get(layer)
        if columns is None and len(self._tables) < _MOST_TABLES:
            first = table[0].detach().double()
            columns = self._tables[layer] = _Columns(run.locate(), run.step + 1, first)
        if columns is not None and len(columns.first) == table.shape[1]:
            columns.add(table)

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            yield seen.report(
                f"In {seen.mistakes} of {self._tally.calls} calls of the model, {seen.reason}.",
                {"calls": self._tally.calls, "mistakes": seen.mistakes},
            )
        for columns in self._tables.values():
            spread = columns.spread()
            varied = [value for value in spread if value > 0]
            if columns.count >= FEWEST_ROWS and varied and max(varied) > OTHER_SCALE * min(varied):
                large, small = spread.index(max(varied)), spread.index(min(varied))
                yield columns.report(
                    f"Column {large} of the inputs has a standard deviation of {max(varied):.3g}, "
                    f"and column {small} of {min(varied):.3g}.",
                    {"largest": max(varied), "smallest": min(varied), "columns": [large, small]},
                )


def _has_failed(values: Tensor) -> Tensor:
    """Return whether some values are NaN or infinite.

    On the CPU, a finite sum shows faster that none is; that of a GPU would be waited for.
    """
    import torch

    values = values.detach()
    if values.device.type == "cpu":
        is_half = values.dtype.itemsize < 4
        total = values.sum(dtype=torch.float32 if is_half else None)
        if total.isfinite():
            return torch.zeros_like(total, dtype=torch.bool)
    return ~values.isfinite().all()
