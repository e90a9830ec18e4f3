"""Overlapping windows of a series are split at random, so training sees the evaluation.

Windows that start one step apart share all values but one. After a random split, almost each window
for evaluation has neighbours in the training part that hold its values, and its target. Nothing
fails: the evaluation is far better than the model is on the future of the series.

Windows that do not overlap, and splits by time, are not reported.

A run of Trainer is checked if the Task says the time of each sample,
`Task(times={"train": ..., "val": ...})`: a sample to evaluate from before the last sample to train
on is one whose future the model has seen.

Source: https://scikit-learn.org/stable/modules/cross_validation.html#time-series-split
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.remark import Remark
from surestep.doctor.source.loaders import method_of
from surestep.doctor.source.splits import find_splits
from surestep.doctor.source.trace import Loop, Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Collection, Instance, Item, Value, walk

if TYPE_CHECKING:
    from surestep.doctor.data_case import DataCase

SEVERITY = "error"
FIX = "Split the series by time first, and make the windows of each part: train = series[:n]."


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
