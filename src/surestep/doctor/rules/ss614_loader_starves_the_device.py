"""The training waits for its data.

A step cannot begin before its batch is loaded. If loading takes longer than training on a batch,
the device is idle for the rest of the time, and a faster device makes nothing faster. The result
is the same.

Data that is sliced in memory is not reported: workers do not make it faster. Nor is the time before
the first log point, in which the workers start. The number of workers that is suggested is the time
to load a batch divided by the time to train on it.

A script that is watched is reported from a third of the time on. On a GPU, only the time counts in
which it has nothing to do.

Ignore it if the loading cannot be made cheaper, and no core is free.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html

Wrong:

    import time

    import torch
    from torch.utils.data import Dataset

    import surestep


    class Rows(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            time.sleep(0.003)  # decodes an image
            return torch.full((4,), index / 64), torch.full((1,), float(index % 5))


    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=Rows())
    config = surestep.Config(
        max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
    )
    surestep.Trainer(task, config, run="run").fit()

Right:

    import torch

    import surestep

    x = torch.randn(64, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(
        max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
    )
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.limits import FEWEST_TIMED
from surestep.doctor.problem import Problem
from surestep.doctor.runtime.passes import Pass, begin_pass
from surestep.doctor.watcher import Script, Watcher
from surestep.doctor.wording import format_seconds

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


SEVERITY = "speed"
REVIEWED = True
FIX = "Raise data.num_workers, or make loading cheaper: decode and resize once, store the result."
_SHARE = 0.3  # of the time in a script that is watched, which itself takes time
_WAIT_S = 15e-3  # for a batch: shorter ones may come from other work of the machine
_MOST_BATCHES = 500  # that are measured
_MOST_LOADERS = 20


@dataclass
class _Times:
    """How long the batches of a loader took, without the first of each pass.

    Attributes:
        entry: the pass that runs.
        workers: of the loader.
        waits: seconds until a batch was there, while the device had nothing to do.
        total: seconds of the steps and the waits.
        last: when the last batch was there.
    """

    entry: Pass
    workers: int
    waits: list[float] = field(default_factory=list)
    total: float = 0.0
    last: float = 0.0


class LoaderStarvesTheDeviceWatcher(Watcher):
    """Measure how long a script waits for the batches that it trains on."""

    def __init__(self) -> None:
        self._times: WeakKeyDictionary[DataLoader[Any], _Times] = WeakKeyDictionary()
        self._found: list[_Times] = []

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        times = self._times.get(loader)
        if times is not None:
            times.last = 0.0
        elif len(self._found) < _MOST_LOADERS:
            times = _Times(begin_pass(run), loader.num_workers)
            self._times[loader] = times
            self._found.append(times)

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        times = self._times.get(loader)
        if times is None or len(times.waits) >= _MOST_BATCHES:
            return
        now, trained = time.perf_counter(), times.entry.trained
        times.entry.begin_batch(run)
        if times.last and times.entry.trained > trained:
            times.waits.append(seconds if _is_device_idle() else 0.0)
            times.total += now - times.last
        times.last = now

    def observe(self, run: Script) -> Iterator[Problem]:
        for times in self._found:
            if len(times.waits) < FEWEST_TIMED or median(times.waits) < _WAIT_S:
                continue
            share = sum(times.waits) / times.total
            if share > _SHARE:
                wait = format_seconds(median(times.waits))
                yield times.entry.report(
                    f"{share:.0%} of the time of {len(times.waits)} steps was spent waiting for "
                    f"data, {wait} for a batch, with num_workers={times.workers}.",
                    {"share": share, "num_workers": times.workers, "steps": len(times.waits)},
                )


def _is_device_idle() -> bool:
    """Return whether a GPU has finished all that it was given; this does not wait for it."""
    import torch

    return not torch.cuda.is_initialized() or torch.cuda.current_stream().query()
