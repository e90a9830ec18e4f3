"""A DistributedSampler does not get the epoch, so each epoch has the same order.

`DistributedSampler` shuffles by its seed and the epoch. Without `set_epoch`, the epoch stays 0, and
all epochs have the same batches in the same order. Nothing fails: the model only generalises less.

Lightning, Accelerate and Fabric call `set_epoch` themselves. Ignore it if the order is wanted.

Source: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler

Wrong:

    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

Right:

    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=2, rank=0))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import NOWHERE, Location, Problem, at_event
from surestep.doctor.runtime.passes import Pass, begin_pass
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.source.loaders import (
    SourceLoader,
    find_loaders,
    find_training_loops,
    is_restarted,
)
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, may_be_same, options_of
from surestep.doctor.source.values import Attribute, Call, Constant
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

SEVERITY = "error"
FIX = "Call sampler.set_epoch(epoch) at the start of each epoch."
_SAMPLER = "DistributedSampler"
_FEWEST = 3  # epochs: a search of the learning rate may be before the first
_MOST = 20  # loaders


def check(program: Program) -> Iterator[Problem]:
    """Find loops over epochs whose sampler does not get the epoch."""
    for trace in program.traces:
        for loader in find_loaders(trace):
            sampler = _find_sampler(loader)
            if sampler is None or _gets_epoch(program, loader, sampler):
                continue
            loops = find_training_loops(trace, loader)
            if any(len(nest) > 1 for nest in loops) or is_restarted(trace, loader):
                yield at_event(
                    loader.event,
                    f"`{describe(sampler)}` gives each epoch the same order: nothing calls "
                    "`set_epoch`.",
                )


def _find_sampler(loader: SourceLoader) -> Call | None:
    """Return the sampler of a loader, if it is a DistributedSampler that shuffles."""
    for sampler in options_of(loader.option("sampler")):
        is_torch = isinstance(sampler, Call) and sampler.path.startswith("torch.utils.data")
        if is_torch and isinstance(sampler, Call) and sampler.name == _SAMPLER:
            shuffle = sampler.argument(3, "shuffle")
            is_random = shuffle is None or (isinstance(shuffle, Constant) and bool(shuffle.value))
            if is_random and not sampler.has_unknown_arguments:
                return sampler
    return None


def _gets_epoch(program: Program, loader: SourceLoader, sampler: Call) -> bool:
    """Return whether a call of `set_epoch` may be of a sampler, or of that of a loader."""
    if not program.mentions("set_epoch"):
        return False
    calls = [call for t in program.traces for _, call in t.calls if call.name == "set_epoch"]
    owners = [owner for call in calls for owner in options_of(call.receiver)]
    return not owners or any(
        may_be_same(owner.base, loader.call)
        if isinstance(owner, Attribute)
        else may_be_same(owner, sampler)
        for owner in owners
    )


@dataclass
class _Epochs(Occurrence):
    """The epochs of a loader in which the script trains.

    Attributes:
        number: that the sampler has.
        entry: the pass that runs.
        passes: in which the script trained with this number.
        location: of the loop.
        since_step: of the first pass with a number that another one had.
    """

    number: int
    entry: Pass
    passes: int = 0
    location: Location = NOWHERE
    since_step: int = 0


class SamplerWithoutSetEpochWatcher(Watcher):
    """Compare the number of the epoch that the sampler has in each epoch."""

    def __init__(self) -> None:
        self._epochs: WeakKeyDictionary[DataLoader[Any], _Epochs] = WeakKeyDictionary()
        self._found: list[_Epochs] = []

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        from torch.utils.data import DistributedSampler

        sampler = loader.sampler
        if not isinstance(sampler, DistributedSampler) or not sampler.shuffle:
            return
        entry, epochs = begin_pass(run), self._epochs.get(loader)
        if epochs is None or epochs.number != sampler.epoch:
            epochs = self._epochs[loader] = _Epochs(sampler.epoch, entry)
            self._found = [seen for seen in self._found if seen.passes >= _FEWEST][:_MOST]
            self._found.append(epochs)
        elif epochs.entry.trained:
            epochs.passes += 1
            if epochs.passes == 1:
                epochs.location, epochs.since_step = entry.location, entry.since_step
        epochs.entry = entry

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        epochs = self._epochs.get(loader)
        if epochs is not None:
            epochs.entry.begin_batch(run)

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        epochs = self._epochs.get(loader)
        if epochs is not None:
            epochs.entry.end_batch(run)

    def observe(self, run: Script) -> Iterator[Problem]:
        for epochs in self._found:
            passes = epochs.passes + (epochs.entry.trained > 0)
            if passes >= _FEWEST:
                yield epochs.report(
                    f"{passes} epochs had the same order: the sampler had the epoch "
                    f"{epochs.number} in all of them.",
                    {"epochs": passes, "number": epochs.number},
                )
