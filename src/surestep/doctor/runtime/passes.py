"""Passes over DataLoaders, and which of their batches a script trains on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import NOWHERE, Location
from surestep.doctor.runtime.locations import locate_class
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass
class Pass(Occurrence):
    """One iteration over a DataLoader.

    Attributes:
        location: of the loop.
        since_step: the step that follows its start, from 1.
        batches: that it gave.
        trained: after how many of them, but the last one, an optimizer took a step.
    """

    location: Location
    since_step: int
    batches: int = 0
    trained: int = 0
    _step: int = 0

    def begin_batch(self, run: Script) -> None:
        """Count a batch."""
        self.end_batch(run)
        self.batches += 1
        self._step = run.step

    def end_batch(self, run: Script) -> None:
        """Count whether the last batch was trained on."""
        if self.batches and run.step > self._step:
            self.trained += 1
        self._step = run.step


def begin_pass(run: Script) -> Pass:
    """Return a pass that begins now: call it in `on_loader`."""
    return Pass(run.locate(), run.step + 1)


def count_batches(loader: DataLoader[Any]) -> int | None:
    """Return the number of batches of a pass; None if that is not known before its end.

    The length of a sampler of the script is not asked: it may draw random numbers. Nor is that of a
    stream: torch warns if such a dataset gives more samples.
    """
    from torch.utils.data import IterableDataset

    samplers = (loader.sampler, loader.batch_sampler)
    if isinstance(loader.dataset, IterableDataset) or any(
        locate_class(sampler) is not NOWHERE for sampler in samplers
    ):
        return None
    try:
        return len(loader)
    except Exception:  # of a dataset without a length
        return None
