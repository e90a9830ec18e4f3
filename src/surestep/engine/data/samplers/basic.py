"""Every sample once: shuffled, or as stored."""

from dataclasses import dataclass, replace

from torch import Tensor

from surestep.engine.plan.batching import BatchLayout, DatasetView, SampleOrder, epoch_permutation


@dataclass(frozen=True)
class BasicOrder:
    """Every sample once; in a new order each epoch where `shuffle` is true."""

    shuffle: bool
    count: int = 0

    @property
    def name(self) -> str:
        """Return "shuffled" or "sequential"."""
        return "shuffled" if self.shuffle else "sequential"

    def bind(self, samples: DatasetView) -> "BasicOrder":
        """Return the order over this data."""
        return replace(self, count=samples.count)

    def __len__(self) -> int:
        return self.count

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor | None:
        """Return a permutation, or None for the stored order."""
        return epoch_permutation(self.count, seed, epoch) if self.shuffle else None

    def explain(self, cut: BatchLayout, seed: int) -> str:
        """Say what comes of it."""
        return "each sample once, " + ("in a new order each epoch" if self.shuffle else "as stored")


def shuffled() -> SampleOrder:
    """Return a sampler that reads every sample once, in a new random order each epoch."""
    return BasicOrder(shuffle=True)


def sequential() -> SampleOrder:
    """Return a sampler that reads every sample once, in stored order."""
    return BasicOrder(shuffle=False)
