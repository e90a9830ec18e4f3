"""The indices that a function of the user's own gives for each epoch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.plan.batching import BatchLayout, DatasetView, SampleOrder
from surestep.engine.rng import derive_seed, preserve_rng, seed_loading


@dataclass(frozen=True, eq=False)
class CustomOrder:
    """Indices from `read(seed, epoch)`, proved to be a function of them before the run.

    Attributes:
        read: gives the indices of an epoch.
        what: what it is called in errors.
        instead: what to do where it cannot be used.
        length: positions of an epoch; found by reading the first where not known.
        count: how many samples there are.
        name: what the Plan calls it.
    """

    read: Callable[[int, int], Iterable[int]]
    what: str
    instead: str
    length: int | None = None
    count: int = 0
    name: str = "own"

    def bind(self, samples: DatasetView) -> "CustomOrder":
        """Return the order over this data, after reading two epochs and one of them again.

        Raises:
            DataError: an epoch does not come back the same, has another length than it says, or
                holds what is no index of a sample.
        """
        found = replace(self, count=samples.count)
        first = found._indices(0, 0)
        found = replace(found, length=len(first) if self.length is None else self.length)
        found.indices(0, 1, 1)
        if not torch.equal(first, found.indices(0, 0, 1)):
            raise DataError(
                f"{self.what} gave two orders for the same seed and epoch, so a run could not go "
                f"on in the middle of an epoch. {self.instead}"
            )
        return found

    def __len__(self) -> int:
        assert self.length is not None, "not over any data yet"
        return self.length

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        """Return the indices of an epoch, checked.

        Raises:
            DataError: they are not as many as in the first, or one is no index of a sample.
        """
        found = self._indices(seed, epoch)
        if len(found) != len(self):
            raise DataError(
                f"{self.what} gave {len(found)} indices for epoch {epoch + 1}, and its length is "
                f"{len(self)}. Each epoch needs as many. {self.instead}"
            )
        return found

    def _indices(self, seed: int, epoch: int) -> Tensor:
        with preserve_rng():
            seed_loading(derive_seed("order", seed, epoch))
            found = self.read(seed, epoch)
            if not isinstance(found, Tensor):
                found = torch.tensor([int(each) for each in found], dtype=torch.int64)
        if found.dim() != 1 or not len(found) or found.is_floating_point():
            raise DataError(
                f"{self.what} gave {found.dtype} of shape {tuple(found.shape)} for epoch "
                f"{epoch + 1}. Give one index for each position. {self.instead}"
            )
        if int(found.min()) < 0 or int(found.max()) >= self.count:
            raise DataError(
                f"{self.what} gave indices from {int(found.min())} to {int(found.max())}, and "
                f"there are {self.count} training samples. {self.instead}"
            )
        return found.long().cpu()

    def explain(self, cut: BatchLayout, seed: int) -> str:
        """Say what was proved."""
        return f"{self.what}: {len(self)} positions; an epoch was read twice and came back the same"


def custom(function: Callable[[int, int], Iterable[int]]) -> SampleOrder:
    """Return a sampler that calls a function of (seed, epoch), which returns sample indices.

    The generators of Python, numpy and torch are seeded while it runs, so it may draw random
    numbers. It is called twice for one epoch before the run, to check that it repeats.
    """
    what = getattr(function, "__name__", type(function).__name__)
    instead = "Make it depend on (seed, epoch) alone, and give indices of samples."
    return CustomOrder(function, f"The order function {what}", instead)
