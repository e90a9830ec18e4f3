"""Compare the batches of the workers of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.batches import digest_batch, digest_parts
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

_ROUNDS = 4  # in which all workers give a batch
_FEWEST = 2  # rounds with equal batches
_MOST_WORKERS = 16
_MOST_PASSES = 20


@dataclass
class Shares(Occurrence):
    """The first batches of a pass, which workers give in turn.

    Attributes:
        location: of the loop.
        since_step: the step that follows its start, from 1.
        workers: how many.
        digests: of the batches, or of the parts of each.
    """

    location: Location
    since_step: int
    workers: int
    digests: list[list[int | None]] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """Rounds in which all workers gave the same batch, or the same part of it.

        It is 0 if all batches are the same.
        """
        return max(map(self._count_repeated, zip(*self.digests, strict=False)), default=0)

    def _count_repeated(self, digests: tuple[int | None, ...]) -> int:
        starts = range(0, len(digests) - self.workers + 1, self.workers)
        rounds = [set(digests[start : start + self.workers]) for start in starts]
        same = [found for found in rounds if len(found) == 1 and None not in found]
        is_constant = len(set().union(*same)) < len(same)
        is_repeated = len(same) == len(rounds) >= _FEWEST and not is_constant
        return len(same) if is_repeated else 0


class WorkersWatcher(Watcher):
    """Compare the first batches of the workers of DataLoaders that have several.

    Attributes:
        IS_ITERABLE: whether their datasets are iterable.
    """

    IS_ITERABLE = False

    def __init__(self) -> None:
        self._shares: WeakKeyDictionary[DataLoader[Any], Shares] = WeakKeyDictionary()
        self._passes: list[Shares] = []  # the first of each loader

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        from torch.utils.data import IterableDataset

        is_iterable = isinstance(loader.dataset, IterableDataset)
        is_known = loader in self._shares or len(self._passes) >= _MOST_PASSES
        if not is_known and is_iterable == self.IS_ITERABLE and loader.num_workers > 1:
            shares = Shares(run.locate(), run.step + 1, loader.num_workers)
            self._shares[loader] = shares
            self._passes.append(shares)

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        shares = self._shares.get(loader)
        if shares is None or shares.workers > _MOST_WORKERS:
            return
        if len(shares.digests) < _ROUNDS * shares.workers:
            # Random noise may differ in samples that are the same.
            parts = digest_parts(batch) if self.IS_ITERABLE else [digest_batch(batch)]
            shares.digests.append(parts)

    def observe(self, run: Script) -> Iterator[Problem]:
        for shares in self._passes:
            if shares.repeated:
                yield shares.report(
                    f"The {shares.workers} workers gave the same batches: {shares.repeated} of the "
                    f"first {len(shares.digests)} batches were different.",
                    {"workers": shares.workers, "different": shares.repeated},
                )
