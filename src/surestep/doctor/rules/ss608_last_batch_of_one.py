"""BatchNorm trains on a last batch of one or two samples.

If the number of samples is not a multiple of the batch size, the last batch of an epoch has the
rest. With one value per channel BatchNorm cannot compute a variance, and torch raises an error.
With one image or with two samples it computes one of so few values that the outputs and the
running statistics are noise.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html

Wrong:

    import torch

    import surestep

    x, y = torch.randn(33, 3, 4, 4), torch.arange(33) % 3
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    )
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()

Right:

    import torch

    import surestep

    x, y = torch.randn(33, 4), torch.arange(33) % 3
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8, data=surestep.Data(drop_last=True))
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.limits import SMALL_BATCH
from surestep.doctor.problem import NOWHERE, Location, Problem
from surestep.doctor.runtime.batches import list_tensors
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.watcher import Script, Watcher
from surestep.doctor.wording import list_names

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


SEVERITY = "warning"
REVIEWED = True
FIX = "Set drop_last=True (data.drop_last in a Config), or another batch size."
_USUAL = 4  # a batch size above which so few samples are not meant
_MOST_LOADERS = 20


@dataclass
class _Rests(Occurrence):
    """The small last batches of a loader.

    Attributes:
        location: of the loop.
        size: of the last one.
        seen_at: the step before it; -1 if it was not small.
        since_step: step that trained on one; 0 without any.
        count: of those that were trained on.
        layers: that normalised them.
    """

    location: Location = NOWHERE
    size: int = 0
    seen_at: int = -1
    since_step: int = 0
    count: int = 0
    layers: list[str] = field(default_factory=list)


class LastBatchOfOneWatcher(Watcher):
    """Count small last batches that BatchNorm layers in training mode normalise."""

    def __init__(self) -> None:
        self._rests: WeakKeyDictionary[DataLoader[Any], _Rests] = WeakKeyDictionary()
        self._found: list[_Rests] = []

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        if (loader.batch_size or 0) > _USUAL and len(self._found) < _MOST_LOADERS:
            if loader not in self._rests:
                self._rests[loader] = _Rests()
                self._found.append(self._rests[loader])
            self._rests[loader].location = run.locate()

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        rests = self._rests.get(loader)
        if rests is None or rests.layers:
            return
        tensors = list_tensors(batch)
        rests.seen_at = -1
        if tensors and tensors[0].dim() and len(tensors[0]) <= SMALL_BATCH:
            rests.size, rests.seen_at = len(tensors[0]), run.step

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        from surestep.doctor import private

        rests = self._rests.get(loader)
        if rests is None or not 0 <= rests.seen_at < run.step:
            return
        if not rests.layers:
            rests.since_step = rests.seen_at + 1
            rests.layers = [
                name
                for model in run.models
                for name, module in model.named_modules()
                if isinstance(module, private.BatchNorm) and module.training
            ]
        rests.count += 1

    def observe(self, run: Script) -> Iterator[Problem]:
        for rests in self._found:
            if rests.layers:
                yield rests.report(
                    f"The last batch had {rests.size} samples, so the BatchNorm layers "
                    f"{list_names(rests.layers)} trained on the statistics of so few.",
                    {"samples": rests.size, "layers": rests.layers},
                )
