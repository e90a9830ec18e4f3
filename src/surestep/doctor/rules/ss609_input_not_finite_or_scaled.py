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

from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.runtime.values import is_tensor
from surestep.doctor.watcher import Run, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

    from surestep.doctor.data_case import DataCase

SEVERITY = "warning"
FIX = "Standardize the columns: subtract their mean and divide by their standard deviation."
_TIMES = 1e4  # the largest standard deviation by the smallest
_FEWEST = 50  # samples
_WIDEST = 64  # columns of a table: wider ones are often flat images, or counts of words
_SHOWN = 6  # columns in a message
_MOST_VALUES = 1_000_000  # of an input that is checked
_MOST_TABLES = 20


def inspect(data: DataCase) -> Iterator[Problem]:
    """Find samples with NaN, columns with one value, and columns of different scales."""
    for split in (data.train, *data.others):
        bad: set[int] = set()
        for tensor in split.inputs or ():
            if tensor.is_floating_point():
                finite = tensor.isfinite().reshape(len(tensor), -1).all(1)
                bad |= {split.rows[row] for row in (~finite).nonzero().flatten().tolist()}
        if bad:
            samples = sorted(bad)
            yield Problem(
                f"{len(samples)} of {len(split.rows)} samples of the {split.name} data that were "
                f"read have inputs that are NaN or infinite, such as sample {samples[0]}.",
                {"part": split.name, "samples": samples[:100]},
                "Fill in or leave out what is missing, or set exclude_samples.",
            )
    yield from _inspect_columns(data)


def _inspect_columns(data: DataCase) -> Iterator[Problem]:
    inputs = data.train.inputs
    if inputs is None or len(inputs) != 1 or not inputs[0].is_floating_point():
        return
    if data.train.share is None:  # the first samples may vary less than all do
        return
    (table,) = inputs
    if table.dim() != 2 or not 1 < table.shape[1] <= _WIDEST or len(table) < _FEWEST:
        return
    table = table.double()
    spread = table[table.isfinite().all(1)].std(0)
    constant = (spread == 0).nonzero().flatten().tolist()
    if constant and data.train.is_complete:
        shown = ", ".join(map(str, constant[:_SHOWN])) + (" ..." if constant[_SHOWN:] else "")
        yield Problem(
            f"{len(constant)} of {table.shape[1]} columns of the inputs have one value in all "
            f"{len(table)} samples: {shown}.",
            {"columns": constant[:100]},
            "Check that they are read from the right columns; if they are, leave them out.",
            "info",
        )
    is_binary = ((table == table.amin(0)) | (table == table.amax(0))).all(0)
    varied = spread[(spread > 0) & ~is_binary]
    if len(varied) > 1 and not _begins_with_norm(data.loop.state.model):
        large, small = float(varied.max()), float(varied.min())
        if large > _TIMES * small:
            columns = [
                int((spread == value).nonzero()[0]) for value in (varied.max(), varied.min())
            ]
            yield Problem(
                f"Column {columns[0]} of the inputs has a standard deviation of {large:.3g}, and "
                f"column {columns[1]} of {small:.3g}.",
                {"largest": large, "smallest": small, "columns": columns},
                severity="info",
            )


def _begins_with_norm(model: nn.Module) -> bool:
    """Return whether the first layer of a model with parameters or buffers normalizes."""
    for module in model.modules():
        if not list(module.children()) and module.state_dict():
            return "Norm" in type(module).__name__ or "Scale" in type(module).__name__
    return False


@dataclass
class _Columns:
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


class Watch(Watcher):
    """Check what models get, and the columns of a table that a linear layer gets first."""

    def __init__(self) -> None:
        self._tally = LineTally()
        self._tables: WeakKeyDictionary[nn.Module, _Columns] = WeakKeyDictionary()
        self._input: Tensor | None = None  # of the model, until a layer gets it
        self._is_bad: Tensor | None = None

    def on_forward(self, run: Run, module: nn.Module, inputs: tuple[Any, ...]) -> None:
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
        self, run: Run, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if len(run.modules) != 1:
            return
        if self._is_bad is not None and is_tensor(output):
            reason = "its inputs had NaN or infinite values, and so had its outputs"
            self._tally.add(run, reason, self._is_bad & _has_failed(output))
        self._input = self._is_bad = None

    def _add_table(self, run: Run, layer: nn.Module, table: Tensor) -> None:
        if table.dim() != 2 or not 1 < table.shape[1] <= _WIDEST:
            return
        columns = self._tables.get(layer)
        if columns is None and len(self._tables) < _MOST_TABLES:
            first = table[0].detach().double()
            columns = self._tables[layer] = _Columns(run.locate(), run.step + 1, first)
        if columns is not None and len(columns.first) == table.shape[1]:
            columns.add(table)

    def observe(self, run: Run) -> Iterator[Problem]:
        for seen in self._tally:
            yield Problem(
                f"In {seen.mistakes} of {self._tally.calls} calls of the model, {seen.reason}.",
                {"calls": self._tally.calls, "mistakes": seen.mistakes},
                location=seen.location,
                since_step=seen.since_step,
            )
        for columns in self._tables.values():
            spread = columns.spread()
            varied = [value for value in spread if value > 0]
            if columns.count >= _FEWEST and varied and max(varied) > _TIMES * min(varied):
                large, small = spread.index(max(varied)), spread.index(min(varied))
                yield Problem(
                    f"Column {large} of the inputs has a standard deviation of {max(varied):.3g}, "
                    f"and column {small} of {min(varied):.3g}.",
                    {"largest": max(varied), "smallest": min(varied), "columns": [large, small]},
                    location=columns.location,
                    since_step=columns.since_step,
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
