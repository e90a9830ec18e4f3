"""Every sample once, shuffled or as stored; and the indices that a custom function returns."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.plan.batching import BatchLayout, DatasetView, SampleOrder, epoch_permutation
from surestep.engine.rng import derive_seed, preserve_rng, seed_loading


@dataclass(frozen=True)
class BasicOrder:
    """Every sample once, shuffled or as stored."""

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

    def explain(self, layout: BatchLayout, seed: int) -> str:
        """Describe the order."""
        return "each sample once, " + ("in a new order each epoch" if self.shuffle else "as stored")


@dataclass(frozen=True, eq=False)
class CustomOrder:
    """Indices from `read(seed, epoch)`, which is checked to repeat."""

    read: Callable[[int, int], Iterable[int]]
    what: str  # its name in errors
    instead: str  # what to do if it cannot be used
    length: int | None = None  # positions of an epoch; None until the first epoch was read
    count: int = 0  # of samples
    name: str = "own"

    def bind(self, samples: DatasetView) -> "CustomOrder":
        """Return the order over this data, after reading two epochs and one of them again."""
        found = replace(self, count=samples.count)
        first = found._read(0, 0)
        found = replace(found, length=len(first) if self.length is None else self.length)
        found.indices(0, 1, 1)
        if not torch.equal(first, found.indices(0, 0, 1)):
            raise DataError(
                f"{self.what} gave two orders for the same seed and epoch, so a run could not "
                f"resume in the middle of an epoch. {self.instead}"
            )
        return found

    def __len__(self) -> int:
        assert self.length is not None, "bind() is called first"
        return self.length

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        """Return the indices of an epoch."""
        found = self._read(seed, epoch)
        if len(found) != len(self):
            raise DataError(
                f"{self.what} gave {len(found)} indices for epoch {epoch + 1}, and its length is "
                f"{len(self)}. Each epoch needs as many. {self.instead}"
            )
        return found

    def _read(self, seed: int, epoch: int) -> Tensor:
        with preserve_rng():
            seed_loading(derive_seed("sampler", seed, epoch, 0))
            found = self.read(seed, epoch)
            if not isinstance(found, Tensor):
                found = torch.tensor([int(index) for index in found], dtype=torch.int64)
        is_index = found.dim() == 1 and bool(len(found)) and not found.is_floating_point()
        if not is_index or int(found.min()) < 0 or int(found.max()) >= self.count:
            values = f" from {found.min()} to {found.max()}" if found.numel() else ""
            raise DataError(
                f"{self.what} gave {found.dtype} of shape {tuple(found.shape)}{values} for epoch "
                f"{epoch + 1}, and there are {self.count} training samples. Give one index for "
                f"each position. {self.instead}"
            )
        return found.long().cpu()

    def explain(self, layout: BatchLayout, seed: int) -> str:
        """Describe the check."""
        return f"{self.what}: {len(self)} positions; an epoch was read twice and was the same"


def shuffled() -> SampleOrder:
    """Return a sampler that reads every sample once, in a new random order each epoch."""
    return BasicOrder(shuffle=True)


def sequential() -> SampleOrder:
    """Return a sampler that reads every sample once, in stored order."""
    return BasicOrder(shuffle=False)


def custom(function: Callable[[int, int], Iterable[int]]) -> SampleOrder:
    """Return a sampler that calls a function of (seed, epoch), which returns sample indices.

    The generators of Python, numpy and torch are seeded while it runs, so it may draw random
    numbers. It is called twice for one epoch before the run, to check that it repeats.

    Args:
        function: returns the index of the sample at each position of an epoch: an integer tensor,
            (positions,), or an iterable of int. Every epoch has as many positions.
    """
    what = getattr(function, "__name__", type(function).__name__)
    instead = "Make it depend on (seed, epoch) alone, and return indices of samples."
    return CustomOrder(function, f"The order function {what}", instead)
