"""Training data whose samples are ordered by class is not shuffled.

If a batch has samples of one class only, its gradient moves the model towards that class, and
BatchNorm sees the statistics of that class. The loss rises and falls with the order of the data,
and the last classes win. Nothing fails: a DataLoader keeps the order unless you set `shuffle=True`.

In a script, only data whose order is known is reported: folders of images, labels that are counted
up, and datasets that are joined. Data that is mixed already, and `shuffle=False`, are left alone.
While a script runs, the order of the labels shows it.

A run of `surestep train` with `data.shuffle=False` reads some of the labels: they are reported if
those of each class come one after another. Labels of a stream are reported only if all of them
could be read, and there is no `data.shuffle_buffer`.

Source: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader

Wrong:

    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import ToTensor

    loader = DataLoader(ImageFolder("images/train", ToTensor()), batch_size=32, num_workers=4)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(10):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

Right:

    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(3).repeat_interleave(20)
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.batches import find_labels
from surestep.doctor.runtime.passes import Pass, begin_pass
from surestep.doctor.source.loaders import SourceLoader, find_loaders, find_training_loops
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, options_of, tensor_of
from surestep.doctor.source.values import Call, Collection, Constant, Operation, Value, walk
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader


SEVERITY = "warning"
REVIEWED = True
FIX = "Write DataLoader(train_set, ..., shuffle=True)."
_FOLDERS = ("torchvision.datasets.ImageFolder", "torchvision.datasets.DatasetFolder")
_JOINS = ("torch.cat", "torch.concat", "torch.hstack", "numpy.concatenate", "numpy.hstack")
_CONSTANTS = frozenset("zeros ones full zeros_like ones_like full_like".split())
_MIXES = re.compile(r"shuffle|perm|random_split|train_test_split|sample|Subset|choice|argsort")
_FEWEST_SAMPLES = 30
_MOST_SAMPLES = 20_000  # whose labels are stored
_MOST_LOADERS = 20
_RUNS_OF_CLASS = 3  # several ordered datasets may be joined; labels of time series change often
_SHARE = 0.3  # of the runs of a random order
_SAME = 0.6  # of the limits between batches, at which the label does not change


def check(program: Program) -> Iterator[Problem]:
    """Find loaders that train on ordered data in its order."""
    for trace in program.traces:
        if any(call.name == "shuffle" for _, call in trace.calls):
            continue
        for loader in find_loaders(trace):
            given = ("shuffle", "sampler", "batch_sampler")
            if any(loader.option(name) is not None for name in given) or _is_full_batch(loader):
                continue
            dataset = loader.option("dataset")
            if dataset is None or _is_mixed(dataset) or not find_training_loops(trace, loader):
                continue
            reason = _explain_order(dataset)
            if reason:
                yield at_event(
                    loader.event,
                    f"`{describe(loader.call)}` keeps the order of its samples, and {reason}.",
                )


def _is_full_batch(loader: SourceLoader) -> bool:
    size = loader.option("batch_size")
    return size is not None and not isinstance(size, Constant)


def _is_mixed(dataset: Value) -> bool:
    return any(isinstance(entry, Call) and _MIXES.search(entry.path) for entry in walk(dataset))


def _explain_order(dataset: Value) -> str:
    """Return how the samples are ordered; "" if that is not known."""
    options = options_of(dataset)
    made = options[0] if len(options) == 1 else None
    if not isinstance(made, Call):
        return ""
    if made.path in _FOLDERS:
        return "those of a folder of images are ordered by class"
    if made.path == "torch.utils.data.ConcatDataset":
        parts = made.argument(0, "datasets")
        is_list = isinstance(parts, Collection) and len(parts.elements) > 1
        return f"`{describe(made)}` puts one dataset after another" if is_list else ""
    if made.path == "torch.utils.data.TensorDataset" and made.args:
        labels = next((v for v in walk(made.args[-1]) if _counts_up(v)), None)
        return "" if labels is None else f"`{describe(labels)}` are labels in order"
    return ""


def _counts_up(value: Value) -> bool:
    """Return whether a value is labels class by class: `torch.cat([zeros(n), ones(n)])`."""
    if not isinstance(value, Call):
        return _is_sum_of_lists(value)
    if value.name in ("repeat_interleave", "repeat"):
        source = tensor_of(value)
        is_range = isinstance(source, Call) and source.name == "arange"
        return is_range and (value.name == "repeat_interleave" or value.path == "numpy.repeat")
    parts = value.argument(0, "tensors") if value.path in _JOINS else None
    if not isinstance(parts, Collection) or len(parts.elements) < 2:
        return False
    return all(isinstance(entry, Call) and entry.name in _CONSTANTS for entry in parts.elements)


def _is_sum_of_lists(value: Value) -> bool:
    """Return whether a value is `[0] * n + [1] * n`."""
    if not isinstance(value, Operation) or value.operator != "+":
        return False
    products = [e for e in value.operands if isinstance(e, Operation) and e.operator == "*"]
    lists = [e.operands[0] for e in products if isinstance(e.operands[0], Collection)]
    return len(value.operands) == sum(len(entry.elements) == 1 for entry in lists)


@dataclass
class _Order:
    """The labels of a pass, in their order.

    Attributes:
        entry: the pass.
        labels: of its batches.
        count: of the samples.
    """

    entry: Pass
    labels: list[Tensor] = field(default_factory=list)
    count: int = 0


class TrainingDataNotShuffledWatcher(Watcher):
    """Store the labels of a pass in which the script trains."""

    def __init__(self) -> None:
        self._orders: WeakKeyDictionary[DataLoader[Any], _Order] = WeakKeyDictionary()
        self._found: list[_Order] = []

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        known = self._orders.get(loader)
        is_known = known is not None and known.entry.trained > 0
        if is_known or len(self._found) >= _MOST_LOADERS or not _keeps_order(loader):
            return
        order = self._orders[loader] = _Order(begin_pass(run))
        self._found = [seen for seen in self._found if seen.entry.trained]
        self._found.append(order)

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        order = self._orders.get(loader)
        if order is None or order.count >= _MOST_SAMPLES:
            return
        order.entry.begin_batch(run)
        labels = find_labels(batch)
        if labels is not None:
            order.labels.append(labels.clone())
            order.count += len(labels)

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        order = self._orders.get(loader)
        if order is not None and order.count < _MOST_SAMPLES:
            order.entry.end_batch(run)
            order.count = _MOST_SAMPLES  # one pass is enough

    def observe(self, run: Script) -> Iterator[Problem]:
        for order in self._found:
            batches = [labels.tolist() for labels in order.labels] if order.entry.trained else []
            runs, expected, classes = _count_runs(batches)
            if classes > 1 and runs <= _RUNS_OF_CLASS * classes and runs <= _SHARE * expected:
                count = sum(map(len, batches))
                yield order.entry.report(
                    f"The labels of {count} samples were in {runs} runs of equal labels; if they "
                    f"were shuffled, there would be about {expected:.0f}.",
                    {"samples": count, "runs": runs, "expected": round(expected)},
                )


def _keeps_order(loader: DataLoader[Any]) -> bool:
    """Return whether a loader gives the samples in the order of its dataset."""
    from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

    if isinstance(loader.dataset, IterableDataset):
        return True
    is_plain = type(loader.batch_sampler) is BatchSampler
    return is_plain and type(loader.sampler) is SequentialSampler


def _count_runs(batches: list[list[Any]]) -> tuple[int, float, int]:
    """Return the runs of equal labels, those of a random order, and the number of classes.

    All are 0 if there are too few samples, or if most batches start with another label, as
    those do that are put together of classes.
    """
    labels = [label for batch in batches for label in batch]
    limits = list(pairwise(batches))
    same = sum(first[-1] == second[0] for first, second in limits)
    runs = 1 + sum(first != second for first, second in pairwise(labels))
    is_sorted = runs == len(set(labels)) <= len(batches) / 2
    if len(labels) < _FEWEST_SAMPLES or len(limits) < 2:
        return 0, 0.0, 0
    if not is_sorted and same < _SAME * len(limits):
        return 0, 0.0, 0
    shares = [count / len(labels) for count in Counter(labels).values()]
    expected = 1 + (len(labels) - 1) * (1 - sum(share**2 for share in shares))
    return runs, expected, len(shares)
