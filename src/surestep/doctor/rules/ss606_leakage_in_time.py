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
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.remark import Remark
from surestep.doctor.runtime.batches import list_tensors
from surestep.doctor.runtime.uses import BatchUses
from surestep.doctor.source.loaders import method_of
from surestep.doctor.source.splits import find_splits
from surestep.doctor.source.trace import Loop, Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Collection, Instance, Item, Value, walk
from surestep.doctor.watcher import NOWHERE, Observation, Run, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from surestep.doctor.data_case import DataCase

SEVERITY = "error"
FIX = "Split the series by time first, and make the windows of each part: train = series[:n]."
CHECK_SKIPS = ("bad_subsets_at_random",)
WATCH_SKIPS = ("bad_list_of_windows", "bad_dataset_of_windows", "bad_loop")  # they train nothing
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
            if not split.is_random:
                continue
            windows = next((w for data in split.data for w in _find_windows(data, trace)), None)
            if windows is not None:
                yield at_event(
                    split.event,
                    f"`{describe(split.event.value)}` splits {windows} at random.",
                )


def inspect(data: DataCase) -> Iterator[Remark]:
    """Find sets with samples from before the last one of the training data."""
    own, others = data.read_origins("times")
    for name, times in others.items():
        last = max(own)
        early = sum(time < last for time in times)
        if early:
            kind = "test" if name == "test" else "validation"
            yield Remark(
                f"{early} of {len(times)} samples of the {kind} data {name!r} are from before the "
                f"last sample of the training data, {last}.",
                {"part": name, "early": early, "count": len(times)},
                fix="Split by time: train on the samples before a date, evaluate those after it.",
            )


def _find_windows(data: Value, trace: Trace) -> Iterator[str]:
    """Yield a description of each collection of overlapping windows that data was made from."""
    for value in walk(data):
        if isinstance(value, Collection) and _is_made_of_windows(value, trace):
            line = getattr(value.node, "lineno", None)
            yield f"the overlapping windows of line {line}"
        elif isinstance(value, Instance) and _yields_windows(value):
            yield f"the overlapping windows of `{value.cls.definition.name}`"


def _is_made_of_windows(value: Collection, trace: Trace) -> bool:
    if isinstance(value.node, ast.ListComp) and len(value.node.generators) == 1:
        generator = value.node.generators[0]
        return not generator.ifs and _is_sliding(value.node.elt, generator.target, generator.iter)
    for event in trace.events:
        call = event.call
        if call is None or call.name != "append" or call.receiver is not value or not call.args:
            continue
        loop = _innermost(event.loops)
        is_window = isinstance(call.args[0], Item) and loop is not None and not event.branches
        if is_window and loop is not None and isinstance(event.node, ast.Call):
            item = call.args[0].node
            if isinstance(item, ast.expr) and _is_sliding(item, loop.target, loop.iter):
                return True
    return False


def _innermost(loops: tuple[Loop, ...]) -> ast.For | None:
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
    is_changed = any(
        isinstance(node, ast.Name) and node.id == index and isinstance(node.ctx, ast.Store)
        for node in ast.walk(method)
    )
    return not is_changed and any(_is_window(node, index) for node in ast.walk(method))


@dataclass(frozen=True)
class _Windows:
    """Digests of the windows of a batch.

    Attributes:
        wholes: of each window.
        parts: of all successive times in each window, the last ones at the end.
    """

    wholes: list[int]
    parts: list[list[int]]


class Watch(Watcher):
    """Look for the ends of evaluated windows in those that were trained on.

    After a split by time, windows to train on have the last times of no later window.
    """

    def __init__(self) -> None:
        self._uses: BatchUses[_Windows] = BatchUses()
        self._trainers: WeakSet[DataLoader[Any]] = WeakSet()
        self._wholes: set[int] = set()
        self._parts: set[int] = set()
        self._ends: set[int] = set()
        self._compared = self._shared = 0
        self._location, self._first = NOWHERE, 0

    def on_optimizer(self, run: Run, optimizer: Optimizer) -> None:
        # Each fold of a cross-validation has its optimizer.
        self._wholes, self._parts, self._ends = set(), set(), set()

    def on_forward(self, run: Run, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._uses.count_forward()

    def on_batch(self, run: Run, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        self._count(run, loader)
        if run.is_sampled or run.sees_forwards:
            tensors = list_tensors(batch)
            windows = _digest_windows(tensors[0]) if tensors else None
            if windows is not None:
                self._uses.add(run, loader, windows)

    def after_loader(self, run: Run, loader: DataLoader[Any]) -> None:
        self._count(run, loader)

    def _count(self, run: Run, loader: DataLoader[Any]) -> None:
        for used in self._uses.find(run, loader):
            windows = used.digests
            if used.is_trained:
                self._trainers.add(used.loader)
                if len(self._parts) < _MOST_PARTS:
                    self._wholes.update(windows.wholes)
                    self._parts.update(*windows.parts)
                    self._ends.update(parts[-1] for parts in windows.parts)
            elif used.loader not in self._trainers and self._are_distinct():
                if not self._compared:
                    self._location, self._first = run.locate(), run.step
                self._compared += len(windows.wholes)
                self._shared += sum(
                    parts[-1] in self._parts and whole not in self._wholes
                    for whole, parts in zip(windows.wholes, windows.parts, strict=True)
                )

    def _are_distinct(self) -> bool:
        return bool(self._wholes) and len(self._ends) >= _DISTINCT * len(self._wholes)

    def observe(self, run: Run) -> Iterator[Observation]:
        is_leaking = self._shared >= _MOSTLY * self._compared
        if self._compared >= _FEWEST_COMPARED and is_leaking:
            yield Observation(
                self._location,
                f"{self._shared} of {self._compared} evaluated windows that were compared end with "
                "values inside windows that had been trained on.",
                self._first,
                {"windows": self._compared, "shared": self._shared},
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


def bad_list_of_windows():
    import torch
    from torch.utils.data import TensorDataset, random_split

    series, length = torch.randn(100), 10
    X = torch.stack([series[i : i + length] for i in range(len(series) - length)])
    y = torch.stack([series[i + length] for i in range(len(series) - length)])
    train_set, val_set = random_split(TensorDataset(X, y), [70, 20])


def bad_dataset_of_windows():
    import torch
    from torch.utils.data import Dataset, random_split

    class Windows(Dataset):
        def __init__(self, series, length) -> None:
            self.series, self.length = series, length

        def __len__(self):
            return len(self.series) - self.length

        def __getitem__(self, i):
            return self.series[i : i + self.length], self.series[i + self.length]

    train_set, val_set = random_split(Windows(torch.randn(100), 10), [0.8, 0.2])


def bad_loop():
    import numpy as np
    from sklearn.model_selection import train_test_split

    def make_windows(series, n_steps):
        X, y = [], []
        for i in range(len(series) - n_steps):
            X.append(series[i : i + n_steps])
            y.append(series[i + n_steps])
        return np.array(X), np.array(y)

    X, y = make_windows(np.random.randn(100), 5)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)


def bad_random_split_of_days() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    order = torch.randperm(64)
    train, val = order[:48], order[48:]
    task = surestep.Task(
        torch.nn.Linear(4, 1),
        "mse",
        train=(x[train], y[train]),
        val=(x[val], y[val]),
        times={"train": train, "val": val},
    )
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_split_by_date() -> None:
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


def good_by_time():
    import numpy as np
    from sklearn.model_selection import train_test_split

    series, n = np.random.randn(100), 5
    X = np.array([series[i : i + n] for i in range(len(series) - n)])
    y = np.array([series[i + n] for i in range(len(series) - n)])
    X_train, X_test, y_train, y_test = train_test_split(X, y, shuffle=False)


def good_apart():
    import torch
    from torch.utils.data import TensorDataset, random_split

    series, length = torch.randn(100), 10
    chunks = torch.stack([series[i : i + length] for i in range(0, 100, length)])
    train_set, val_set = random_split(TensorDataset(chunks), [8, 2])


def good_split_first():
    import torch
    from torch.utils.data import Dataset

    class Windows(Dataset):
        def __init__(self, series, length) -> None:
            self.series, self.length = series, length

        def __len__(self):
            return len(self.series) - self.length

        def __getitem__(self, i):
            return self.series[i : i + self.length], self.series[i + self.length]

    series = torch.randn(100)
    train_set, val_set = Windows(series[:80], 10), Windows(series[80:], 10)


def good_chunks_of_a_text():
    import torch
    from torch.utils.data import Dataset, random_split

    class Chunks(Dataset):
        def __init__(self, tokens, length) -> None:
            self.tokens, self.length = tokens, length

        def __len__(self):
            return len(self.tokens) // self.length

        def __getitem__(self, index):
            index = index * self.length
            return self.tokens[index : index + self.length]

    train_set, val_set = random_split(Chunks(torch.randint(9, (100,)), 10), [8, 2])


def bad_subsets_at_random():
    import torch
    from torch.utils.data import DataLoader, Dataset, Subset

    class Windows(Dataset):
        def __init__(self, series):
            self.series = series

        def __len__(self):
            return len(self.series) - 12

        def __getitem__(self, index):
            return self.series[index : index + 12], self.series[index + 12]

    data = Windows(torch.randn(300).cumsum(0))
    order = torch.randperm(len(data)).tolist()
    train = DataLoader(Subset(data, order[:220]), 22, shuffle=True)
    val = DataLoader(Subset(data, order[220:]), 34)
    model = torch.nn.Linear(12, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for x, y in train:
            optimizer.zero_grad()
            (model(x).squeeze(1) - y).pow(2).mean().backward()
            optimizer.step()
        with torch.no_grad():
            print(sum((model(x).squeeze(1) - y).pow(2).sum() for x, y in val))


def good_subsets_by_time():
    import torch
    from torch.utils.data import DataLoader, Dataset, Subset

    class Windows(Dataset):
        def __init__(self, series):
            self.series = series

        def __len__(self):
            return len(self.series) - 12

        def __getitem__(self, index):
            return self.series[index : index + 12], self.series[index + 12]

    data = Windows(torch.randn(300).cumsum(0))
    train = DataLoader(Subset(data, range(220)), 22, shuffle=True)
    val = DataLoader(Subset(data, range(220, 288)), 34)
    model = torch.nn.Linear(12, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for x, y in train:
            optimizer.zero_grad()
            (model(x).squeeze(1) - y).pow(2).mean().backward()
            optimizer.step()
        with torch.no_grad():
            print(sum((model(x).squeeze(1) - y).pow(2).sum() for x, y in val))


def good_sequences_with_padding():
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    x, y = torch.randn(300, 12, 3), torch.randn(300, 1)
    x[:, 8:] = 0  # after the end of each sequence
    train = DataLoader(TensorDataset(x[:220], y[:220]), 22, shuffle=True)
    val = DataLoader(TensorDataset(x[220:], y[220:]), 40)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        for x, y in train:
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
        with torch.no_grad():
            print(sum((model(x) - y).pow(2).sum() for x, y in val))
