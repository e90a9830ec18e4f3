"""Measure the cost of seeding each sample by its position, against a plain DataLoader.

    python -m benchmarks.loading [--samples N] [--rounds N]

Both read the same Python dataset, shuffled, with the same workers and collate it the same way.
The result is the processor time of this process and its workers in microseconds per sample: the
minimum over the rounds, in which both alternate. Other programs affect it less than wall time.

The last line is for samples that are computed, as in a regression on random numbers: one at a time
by a stream, and a batch at a time by `__getitems__`.
"""

import argparse
from collections.abc import Callable, Iterator
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from surestep.engine.data.sources import MapStyleSource, identity_collate
from surestep.engine.data.stream import StreamReader
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.plan.batching import BatchLayout, epoch_permutation

# Workers, samples of a micro-batch, and micro-batches of a global batch.
CASES = ((0, 64, 1), (0, 16, 1), (0, 1, 16), (0, 1, 1), (2, 64, 1))


BATCH_COMPUTED = 32


class Rows(Dataset[tuple[Tensor, int]]):
    """Samples that cost almost nothing, so that the overhead shows."""

    def __init__(self, samples: int) -> None:
        self.x = torch.zeros(samples, 4)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], index % 3


class WithGenerator(Rows):
    """The same, with a generator that is never used."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.generator = torch.Generator()


def processor_us(read: Callable[..., object], data: Rows, *case: int) -> float:
    """Return the processor time of a read, of this process and of workers that have ended."""
    before = _processor_s()
    read(data, *case)
    return (_processor_s() - before) / len(data) * 1e6


def _processor_s() -> float:
    used = (getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def plain(data: Rows, workers: int, size: int, _: int) -> None:
    """Read all as torch does."""
    for _batch in DataLoader(data, size, shuffle=True, num_workers=workers):
        pass


def by_position(data: Rows, workers: int, size: int, micro_batches: int) -> None:
    """Read all as a run does."""
    source = MapStyleSource(data, seed=0, collate=None, options={"num_workers": workers})
    ranges = [range(a, min(a + size, len(data))) for a in range(0, len(data), size)]
    batches = source.read(0, epoch_permutation(len(data), 0, 0), ranges)
    for left in range(len(ranges), 0, -micro_batches):
        for _ in source.take(batches, min(micro_batches, left)):
            pass


def polynomial(samples: int) -> tuple[Tensor, Tensor]:
    """Draw numbers, and return their powers (samples, 4) and the value of a polynomial."""
    powers = torch.randn(samples, 1) ** torch.arange(1, 5)
    return powers, powers.sum(1, keepdim=True)


class OneByOne(IterableDataset[tuple[Tensor, ...]]):
    """A stream that computes a sample at a time."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return (tuple(part[0] for part in polynomial(1)) for _ in range(self.samples))


class AtOnce(Dataset[tuple[Tensor, ...]]):
    """A dataset that computes the samples of a micro-batch at once."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return polynomial(len(indices))


def computed_us(samples: int) -> dict[str, float]:
    """Return the processor time of a computed sample, by the way it is read."""
    size, options = BATCH_COMPUTED, {"num_workers": 0}
    ranges = [range(first, first + size) for first in range(0, samples, size)]

    def function() -> object:
        return [polynomial(size) for _ in ranges]

    def loader() -> object:
        return list(DataLoader(OneByOne(samples), size))

    def stream() -> object:
        layout = BatchLayout(samples, size, size)
        reader = StreamReader(OneByOne(samples), 0, "train")
        read = StreamLoader(reader, layout, part="train", collate=None, options=options)
        return list(read.batches(0, 0))

    def getitems() -> object:
        source = MapStyleSource(AtOnce(), seed=0, collate=identity_collate, options=options)
        return list(source.read(0, epoch_permutation(samples, 0, 0), ranges))

    times = {}
    for read in (function, loader, stream, getitems):
        before = _processor_s()
        read()
        times[read.__name__] = (_processor_s() - before) / samples * 1e6
    return times


def main() -> None:
    """Compare for some sizes of batches and micro-batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for kind in (Rows, WithGenerator):
        for case in CASES:
            data = kind(arguments.samples)
            rounds_us: list[list[float]] = []
            for _ in range(arguments.rounds):
                both = [processor_us(read, data, *case) for read in (plain, by_position)]
                rounds_us.append(both)
            plain_us, seeded_us = (min(times) for times in zip(*rounds_us, strict=True))
            workers, size, count = case
            what = f"{kind.__name__:<14} workers {workers}  batch {size * count:>2} by {size:>2}"
            print(
                f"{what}  plain {plain_us:6.1f}  by position {seeded_us:6.1f}  "
                f"difference {seeded_us - plain_us:5.1f} us"
            )
    samples = arguments.samples // BATCH_COMPUTED * BATCH_COMPUTED
    rounds = [computed_us(samples) for _ in range(arguments.rounds)]
    minimum = {name: min(times[name] for times in rounds) for name in rounds[0]}
    times = "  ".join(f"{name} {us:.1f}" for name, us in minimum.items())
    print(f"computed, batch {BATCH_COMPUTED}  {times} us")


if __name__ == "__main__":
    main()
