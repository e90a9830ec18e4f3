"""The order of an epoch, and how it is split into batches.

The plain order is `torch.randperm` with a generator seeded by (seed, epoch). It is split into
global batches, and those into micro-batches. `surestep.samplers` has other orders.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.base.text import format_bytes
from surestep.engine.allocator import machine_memory
from surestep.engine.rng import derive_seed

LISTED = 256  # batches that are split at a time


def order_generator(seed: int, epoch: int) -> torch.Generator:
    """Return the generator of the order of an epoch."""
    return torch.Generator().manual_seed(derive_seed("order", seed, epoch))


def epoch_permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of an epoch: the index of the sample at each position, (samples,) int64.

    Raises:
        DataError: it does not fit in the machine's memory.
    """
    check_order_fits(
        samples,
        "Set data.shuffle=False; or draw the samples of an epoch: Task(sampler=surestep.samplers."
        f"custom(lambda seed, epoch: torch.randint({samples}, (100_000,)))); or use a stream with "
        "data.shuffle_buffer.",
    )
    return torch.randperm(samples, generator=order_generator(seed, epoch))


def check_order_fits(samples: int, fix: str) -> None:
    """Check that an order of so many samples fits in the machine's memory.

    Args:
        samples: of an epoch.
        fix: what to do if it does not fit, as sentences.

    Raises:
        DataError: it does not.
    """
    if samples * 8 > (memory := machine_memory()):
        raise DataError(
            f"The order of {samples:,} samples takes {format_bytes(samples * 8)}, and this machine "
            f"has {format_bytes(int(memory))} of memory. {fix}"
        )


def find_largest_share(batch_size: int, ranks: int) -> int:
    """Return the most samples of a batch that one rank has, which decide its memory."""
    return -(-batch_size // ranks)


class BatchLayout(NamedTuple):
    """How an epoch is split into batches and micro-batches.

    Each rank has its share of every batch, in as many micro-batches as the others; some may be
    empty.

    Attributes:
        samples: of an epoch; None for a stream without a length, which is split as it is read.
        full: a rank has the shares of all ranks, in order.
        limit: the number of batches of an epoch that are used; None is all.
    """

    samples: int | None
    batch_size: int
    micro_batch_size: int
    drop_last: bool = False
    rank: int = 0
    ranks: int = 1
    full: bool = False
    limit: int | None = None

    @property
    def most(self) -> int | None:
        """The samples of the batches that `limit` allows; None for no limit."""
        return None if self.limit is None else self.limit * self.batch_size

    def batches(self, start: int) -> Iterator[tuple[int, int, bool]]:
        """Yield (first position, end, is the last) of each batch from position `start` on."""
        assert self.samples is not None
        whole = self.samples - self.samples % self.batch_size if self.drop_last else self.samples
        whole = whole if self.most is None else min(whole, self.most)
        for first in range(start, whole, self.batch_size):
            end = min(first + self.batch_size, whole)
            yield first, end, end == whole

    def micro_batches(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (first position, end) of each micro-batch of this rank's share of a batch."""
        samples, size = end - first, self.micro_batch_size
        largest = find_largest_share(samples, self.ranks)
        for rank in range(self.ranks) if self.full else (self.rank,):
            begin = first + samples * rank // self.ranks
            stop = first + samples * (rank + 1) // self.ranks
            for start in range(begin, begin + largest, size):
                yield min(start, stop), min(start + size, stop)

    def iter_chunks(self, start: int) -> Iterator[list[tuple[int, int, bool, list[range]]]]:
        """Yield lists of (first position, end, is the last, micro-batches) from `start` on.

        One list holds LISTED batches: all of a large epoch would take a second, and one batch at a
        time would cost calls in each step.
        """
        batches = self.batches(start)
        while found := [
            (first, end, is_last, [range(*span) for span in self.micro_batches(first, end)])
            for first, end, is_last in islice(batches, LISTED)
        ]:
            yield found


def positions_or_dummy(where: range) -> range:
    """Return the positions to read; for a rank without samples one that does not count."""
    return where or range(max(where.start - 1, 0), max(where.start, 1))


class Single(NamedTuple):
    """A forward on one sample, known before any data is read.

    Attributes:
        samples_left: of the last batch of an epoch; None if every batch has such a forward.
        is_micro: it is one of several micro-batches.
        rank: of several that takes it; None in one process.
    """

    samples_left: int | None
    is_micro: bool
    rank: int | None


def find_single(layout: BatchLayout, total_steps: int | None) -> Single | None:
    """Return which forward gets a single sample; None if none does.

    A rank without samples reads one that does not count.

    Args:
        layout: the layout of an epoch.
        total_steps: of the run; None if every batch is reached.
    """
    size, samples = layout.batch_size, layout.samples
    whole = samples is None or samples >= size
    spans: list[tuple[int | None, int, int]] = [(None, 0, size)] if whole else []
    rest = 0 if samples is None or layout.drop_last else samples % size
    batches = math.inf if layout.limit is None else layout.limit
    if samples is not None and rest and min(batches, total_steps or math.inf) > samples // size:
        spans.append((rest, samples - rest, samples))
    for left, first, end in spans:
        for rank in range(1 if layout.full else layout.ranks):
            sizes = [b - a for a, b in layout._replace(rank=rank).micro_batches(first, end)]
            if min(sizes) <= 1:
                return Single(left, len(sizes) > 1, rank if layout.ranks > 1 else None)
    return None


@dataclass(frozen=True)
class DatasetView:
    """What an order can read of the training data.

    Attributes:
        count: how many samples there are.
        each: loads every sample once, in the stored order.
        targets: the target of every sample; None if they cannot be read without loading.
        parts: the number of samples of each dataset in a mixture, by name.
    """

    count: int
    each: Callable[[], Iterator[Any]]
    targets: Callable[[], Tensor | None] = lambda: None
    parts: Mapping[str, int] = field(default_factory=dict)


class SampleOrder(Protocol):
    """Which sample is at each position of an epoch: a pure function of (seed, epoch)."""

    @property
    def name(self) -> str:
        """Its name in the Plan."""
        ...

    def bind(self, samples: DatasetView) -> "SampleOrder":
        """Check the data, and return the order for it.

        Raises:
            DataError: it does not fit the data.
        """
        ...

    def __len__(self) -> int:
        """Return how many positions an epoch has."""
        ...

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor | None:
        """Return the index of the sample at each position, int64; None is the stored order."""
        ...

    def explain(self, cut: BatchLayout, seed: int) -> str:
        """Return what it does, for the Plan."""
        ...
