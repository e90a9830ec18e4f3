"""Overlapping windows of a series are split at random, so training sees the evaluation.

Windows that start one step apart share all values but one. After a random split, almost each window
for evaluation has neighbours in the training part that hold its values, and its target. Nothing
fails: the evaluation is far better than the model is on the future of the series.

Windows that do not overlap, and splits by time, are not reported. While a script runs, windows of a
DataLoader, of shape (samples, times) or (samples, times, features), are compared by hashes of their
parts in some of the batches.

A run of Trainer is checked if the Task says the time of each sample,
`Task(times={"train": ..., "val": ...})`: a sample to evaluate from before the last sample to train
on is one whose future the model has seen.

Source: https://scikit-learn.org/stable/modules/cross_validation.html#time-series-split

Wrong:

    import torch
    from torch.utils.data import TensorDataset, random_split

    series, length = torch.randn(100), 10
    X = torch.stack([series[i : i + length] for i in range(len(series) - length)])
    y = torch.stack([series[i + length] for i in range(len(series) - length)])
    train_set, val_set = random_split(TensorDataset(X, y), [70, 20])

Right:

    import datetime

    import torch

    import surestep

    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=index) for index in range(64)]
    task = surestep.Task(
        torch.nn.Linear(4, 1),
        "mse",
        train=(x[:48], y[:48]),
        val=(x[48:], y[48:]),
        times={"train": days[:48], "val": days[48:]},
    )
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.batches import list_tensors
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.uses import BatchUses
from surestep.doctor.source.loaders import method_of
from surestep.doctor.source.nodes import find_names
from surestep.doctor.source.splits import DataSplit, find_splits
from surestep.doctor.source.trace import Program, SourceLoop, Trace
from surestep.doctor.source.values import Collection, Instance, Item
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader


SEVERITY = "error"
REVIEWED = True
FIX = "Split the series by time first, and make the windows of each part: train = series[:n]."
_PART = 3  # times that are compared at once: single values are equal by chance
_FEWEST_TIMES = 2 * _PART
_MOST_SAMPLES = 64  # of a batch
_MOST_VALUES = 100_000  # of a batch
_MOST_PARTS = 200_000  # that are stored
_FEWEST_COMPARED = 32
_MOSTLY = 0.8  # of the windows: after a split by time, those next to it may share their values
_DISTINCT = 0.99  # of the ends: those of padded sequences, and of few categories, are equal


def check(program: Program) -> Iterator[Problem]:
    """Find random splits of windows that overlap."""
    for trace in program.traces:
        for split in find_splits(trace):
            windows = next(_find_windows(split, trace), "") if split.is_random else ""
            if windows:
                yield at_event(
                    split.event,
                    f"`{split.event.text}` splits {windows} at random.",
                )


def _find_windows(split: DataSplit, trace: Trace) -> Iterator[str]:
    """Yield a description of each collection of overlapping windows that data was made from."""
    for value in split.list_parts(trace):
        if isinstance(value, Collection) and _is_made_of_windows(value, trace):
            yield f"the overlapping windows of line {value.line}"
        elif isinstance(value, Instance) and _yields_windows(value):
            yield f"the overlapping windows of `{value.cls.definition.name}`"


def _is_made_of_windows(value: Collection, trace: Trace) -> bool:
    if isinstance(value.node, ast.ListComp) and len(value.node.generators) == 1:
        generator = value.node.generators[0]
        return not generator.ifs and _is_sliding(value.node.elt, generator.target, generator.iter)
    for event, call in trace.calls:
        if call.name != "append" or call.receiver is not value or not call.args:
            continue
        loop = _innermost(event.loops)
        is_window = isinstance(call.args[0], Item) and loop is not None and not event.branches
        if is_window and loop is not None and isinstance(event.node, ast.Call):
            item = call.args[0].node
            if isinstance(item, ast.expr) and _is_sliding(item, loop.target, loop.iter):
                return True
    return False


def _innermost(loops: tuple[SourceLoop, ...]) -> ast.For | None:
    node = loops[-1].node if loops else None
    return node if isinstance(node, ast.For) else None


def _is_sliding(item: ast.expr, target: ast.expr, iterated: ast.expr) -> bool:
    """Return whether an item is `x[i : i + n]`, for each i."""
    if not isinstance(target, ast.Name) or not isinstance(iterated, ast.Call):
        return False
    if getattr(iterated.func, "id", "") != "range" or len(iterated.args) > 2:
        return False
    return any(_is_window(node, target.id) for node in ast.walk(item))


def _is_window(node: ast.AST, index: str) -> bool:
    """Return whether a slice starts at an index and is longer than a pair or a triple."""
    if not isinstance(node, ast.Slice) or node.step is not None:
        return False
    match node.lower, node.upper:
        case ast.Name(id=lower), ast.BinOp(left=ast.Name(id=upper), op=ast.Add(), right=length):
            is_short = isinstance(length, ast.Constant) and length.value in (1, 2, 3)
            return lower == upper == index and not is_short
    return False


def _yields_windows(dataset: Instance) -> bool:
    """Return whether a dataset returns `x[i : i + n]` for each index i."""
    method = method_of(dataset.cls, "__getitem__")
    if method is None or len(method.args.args) != 2:
        return False
    index = method.args.args[1].arg
    is_changed = index in find_names(method, ast.Store)
    return not is_changed and any(_is_window(node, index) for node in ast.walk(method))


class _Windows(NamedTuple):
    """Digests of the windows of a batch.

    Attributes:
        wholes: of each window.
        parts: of all successive times in each window, the last ones at the end.
    """

    wholes: list[int]
    parts: list[list[int]]


class LeakageInTimeWatcher(Watcher):
    """Look for the ends of evaluated windows in those that were trained on.

    After a split by time, windows to train on have the last times of no later window.
    """

    def __init__(self) -> None:
        self._uses: BatchUses[_Windows] = BatchUses()
        self._trainers: WeakSet[DataLoader[Any]] = WeakSet()
        self._wholes: set[int] = set()
        self._parts: set[int] = set()
        self._ends: set[int] = set()
        self._tally = Tally()  # of windows; mistakes share their last times

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        # Each fold of a cross-validation has its optimizer.
        self._wholes, self._parts, self._ends = set(), set(), set()

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._uses.count_forward()

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        self._count(run, loader)
        if run.is_sampled or run.sees_forwards:
            tensors = list_tensors(batch)
            windows = _digest_windows(tensors[0]) if tensors else None
            if windows is not None:
                self._uses.add(run, loader, windows)

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        self._count(run, loader)

    def _count(self, run: Script, loader: DataLoader[Any]) -> None:
        for used in self._uses.find(run, loader):
            windows = used.digests
            if used.is_trained:
                self._trainers.add(used.loader)
                if len(self._parts) < _MOST_PARTS:
                    self._wholes.update(windows.wholes)
                    self._parts.update(*windows.parts)
                    self._ends.update(parts[-1] for parts in windows.parts)
            elif used.loader not in self._trainers and self._are_distinct():
                if not self._tally.checked:
                    self._tally.location, self._tally.since_step = run.locate(), run.step
                self._tally.checked += len(windows.wholes)
                self._tally.mistakes += sum(
                    parts[-1] in self._parts and whole not in self._wholes
                    for whole, parts in zip(windows.wholes, windows.parts, strict=True)
                )

    def _are_distinct(self) -> bool:
        return bool(self._wholes) and len(self._ends) >= _DISTINCT * len(self._wholes)

    def observe(self, run: Script) -> Iterator[Problem]:
        compared, shared = self._tally.checked, self._tally.mistakes
        if compared >= _FEWEST_COMPARED and shared >= _MOSTLY * compared:
            yield self._tally.report(
                f"{shared} of {compared} evaluated windows that were compared end with "
                "values inside windows that had been trained on.",
                {"windows": compared, "shared": shared},
            )


def _digest_windows(tensor: Tensor) -> _Windows | None:
    """Return the digests of windows of real numbers; None for other data."""
    if not tensor.is_floating_point() or tensor.dim() not in (2, 3) or len(tensor) < 2:
        return None
    is_small = 0 < tensor.numel() <= _MOST_VALUES
    if tensor.shape[1] < _FEWEST_TIMES or tensor.device.type != "cpu" or not is_small:
        return None
    import torch

    windows = tensor.detach()[:_MOST_SAMPLES].contiguous()
    rows = [row.tobytes() for row in windows.view(torch.uint8).flatten(1).numpy()]
    times = tensor.shape[1]
    size = len(rows[0]) // times  # bytes of a time
    spans = [(first * size, (first + _PART) * size) for first in range(times - _PART + 1)]
    parts = [[hash(row[start:end]) for start, end in spans] for row in rows]
    return _Windows([hash(row) for row in rows], parts)
