"""The order of an epoch as a function of place, and how it is cut into batches.

The order is `torch.randperm` under a generator seeded from (seed, epoch); it is cut into global
batches and those into micro-batches.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from surestep.engine.seed import seed_at


def order_of(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of an epoch: the index of the sample at each position, (samples,) int64."""
    generator = torch.Generator().manual_seed(seed_at("order", seed, epoch))
    return torch.randperm(samples, generator=generator)


class Cut(NamedTuple):
    """How an epoch is cut: batches of `batch_size`, each in micro-batches."""

    samples: int
    batch_size: int
    micro_batch_size: int
    drop_last: bool = False

    def batches(self, start: int) -> Iterator[tuple[int, int, bool]]:
        """Yield (first position, end, is the last) of each batch from position `start` on."""
        whole = self.samples - self.samples % self.batch_size if self.drop_last else self.samples
        for first in range(start, whole, self.batch_size):
            end = min(first + self.batch_size, whole)
            yield first, end, end == whole

    def micro_batches(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (first position, end) of each micro-batch of a batch."""
        for start in range(first, end, self.micro_batch_size):
            yield start, min(start + self.micro_batch_size, end)
