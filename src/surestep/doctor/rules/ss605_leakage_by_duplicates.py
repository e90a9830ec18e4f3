"""The same samples are in the training data and in the validation data.

The model has seen their answers, so the metric shows what it remembers, and not how it does on new
data. It looks good until the model is used. Usual causes are a table that has rows twice,
oversampling or augmentation before the split, and several pictures of one object.

Samples are compared by a hash, and then by their distance: numbers and images to the nearest sample
of the training data, texts by the tokens that they share. Before training, samples of both sets are
read for about a second, so a share is an estimate; `--doctor.check-data all` reads all. Data whose
rows are equal by chance, such as rows of a few categories, is not compared.

Samples of one group, such as the pictures of one patient, share what only that group shows.
`Task(groups={"train": ..., "val": ...})` names the group of each sample: groups that are in both
sets are reported.

While a script runs, samples of a DataLoader are compared by a hash of some of its batches. There,
training data that is evaluated beside other data is not reported.

Ignore it if you validate on the training data on purpose, such as to see whether a model can learn
a few samples.

Source: https://arxiv.org/abs/2207.07048

Wrong:

    import torch

    import surestep

    x = torch.randn(64, 4)
    data = (x, x.sum(1, keepdim=True))
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=data, val=data)
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()

Right:

    import torch

    import surestep

    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    patients = [f"patient {index // 4}" for index in range(64)]
    groups = {"train": patients[:48], "val": patients[48:]}
    train, val = (x[:48], y[:48]), (x[48:], y[48:])
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=train, val=val, groups=groups)
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

from surestep.doctor.limits import DUPLICATE_SHARE
from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.batches import digest_samples, list_tensors
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.runtime.uses import BatchUses
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader


SEVERITY = "warning"
REVIEWED = True
FIX = (
    "Hold samples out, such as torch.utils.data.random_split(data, [0.9, 0.1]): a metric on "
    "training data does not show how the model does on new data."
)
_MOST_VALUES = 5_000_000  # of a batch
_MOST_SAMPLES = 20_000  # whose digests are stored
_MOST_LOADERS = 20
_FEWEST_COMPARED = 16  # samples of an evaluation
_FEWEST_SAME = 8
_DISTINCT = 0.99  # of the training data: rows of few categories are equal by chance


@dataclass
class _Evaluated(Occurrence):
    """The samples of a loader that a model answered without being trained on them.

    Attributes:
        location: of the loop.
        dataset: of the loader.
        since_step: of the first sample that was trained on before.
        samples: how many were compared.
        same: how many of them were trained on before.
        digests: of them.
    """

    location: Location
    dataset: int
    since_step: int = 0
    samples: int = 0
    same: int = 0
    digests: set[int] = field(default_factory=set)


class LeakageByDuplicatesWatcher(Watcher):
    """Compare digests of samples that are trained on with those that are evaluated later.

    Those of each optimizer are compared, because each fold of a cross-validation has its optimizer.
    """

    def __init__(self) -> None:
        self._trained: WeakKeyDictionary[Optimizer, set[int]] = WeakKeyDictionary()
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._uses: BatchUses[list[int]] = BatchUses()
        self._trainers: WeakSet[DataLoader[Any]] = WeakSet()
        self._evaluated: WeakKeyDictionary[DataLoader[Any], _Evaluated] = WeakKeyDictionary()
        self._found: list[_Evaluated] = []
        self._datasets: set[int] = set()
        self._repeated: WeakSet[DataLoader[Any]] = WeakSet()  # after their first pass
        self._rows = self._distinct = 0  # of the first passes of training

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._uses.count_forward()

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        if self._optimizer() is not optimizer:
            self._optimizer = ref(optimizer)

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        self._count(run, loader)
        if not (run.is_sampled or run.sees_forwards):
            return
        tensors = list_tensors(batch)
        if not tensors or tensors[0].dim() < 2 or tensors[0].device.type != "cpu":
            return
        if 0 < tensors[0].numel() <= _MOST_VALUES:
            self._uses.add(run, loader, digest_samples(tensors[0]))

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        self._count(run, loader)
        self._repeated.add(loader)

    def _count(self, run: Script, next_loader: DataLoader[Any]) -> None:
        """Count the samples of batches that were used before a loader gives its next one."""
        for used in self._uses.find(run, next_loader):
            loader, optimizer = used.loader, self._optimizer()
            if optimizer is None:
                continue
            trained = self._trained.setdefault(optimizer, set())
            if used.is_trained:
                self._trainers.add(loader)
                self._datasets.add(id(loader.dataset))
                if len(trained) < _MOST_SAMPLES:
                    if loader not in self._repeated:
                        self._rows += len(used.digests)
                        self._distinct += len(set(used.digests) - trained)
                    trained.update(used.digests)
            elif loader not in self._trainers:
                self._compare(run, loader, used.digests, trained)

    def _compare(
        self, run: Script, loader: DataLoader[Any], digests: list[int], trained: set[int]
    ) -> None:
        seen = self._evaluated.get(loader)
        if seen is None:
            if len(self._found) >= _MOST_LOADERS:
                return
            seen = self._evaluated[loader] = _Evaluated(run.locate(), id(loader.dataset))
            self._found.append(seen)
        new = set(digests) - seen.digests
        if len(seen.digests) < _MOST_SAMPLES:
            seen.digests |= new
            seen.samples += len(digests)
            same = sum(digest in trained for digest in digests)
            if same and not seen.same:
                seen.since_step = run.step
            seen.same += same

    def observe(self, run: Script) -> Iterator[Problem]:
        found = [seen for seen in self._found if seen.samples >= _FEWEST_COMPARED]
        others = [seen for seen in found if seen.same == 0]
        for seen in found:
            # Training data may be evaluated on purpose, beside data that was not trained on.
            is_on_purpose = bool(others) or seen.dataset in self._datasets
            is_by_chance = self._distinct < _DISTINCT * self._rows
            if seen.same < _FEWEST_SAME or seen.same < DUPLICATE_SHARE * seen.samples:
                continue
            if not is_on_purpose and not is_by_chance:
                yield seen.report(
                    f"{seen.same} of {seen.samples} evaluated samples that were compared had been "
                    "trained on before.",
                    {"samples": seen.samples, "same": seen.same},
                )
