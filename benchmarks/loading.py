"""What seeding each sample by its place costs, beside a plain DataLoader.

    python -m benchmarks.loading [--samples N] [--rounds N]

Both read the same Python dataset with the same workers and collate it the same way. Told is the
processor time of this process and its workers together, which other programs disturb less than
the clock, in microseconds a sample: the least of rounds in which both take turns.
"""

import argparse
import os
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from surestep.engine.data.source import Loaded

BATCH = 16  # samples of a global batch, where its micro-batches are smaller


class Rows(Dataset[tuple[Tensor, int]]):
    """Samples that cost next to nothing, so that what is around them shows."""

    def __init__(self, samples: int) -> None:
        self.x = torch.zeros(samples, 4)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], index % 3


class WithGenerator(Rows):
    """The same, with a generator of its own that nobody draws from."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.generator = torch.Generator()


def processor_us(read: Callable[..., object], data: Rows, *how: int) -> float:
    """Return the processor time of a read, of this process and of workers that have ended."""
    before = os.times()
    read(data, *how)
    after = os.times()
    used = (b - a for a, b in zip(before[:4], after[:4], strict=True))
    return sum(used) / len(data) * 1e6


def plain(data: Rows, workers: int, size: int) -> None:
    """Read all as torch does."""
    for _ in DataLoader(data, size, num_workers=workers):
        pass


def by_place(data: Rows, workers: int, size: int) -> None:
    """Read all as a run does."""
    source = Loaded(data, seed=0, collate=None, options={"num_workers": workers})
    ranges = [range(a, min(a + size, len(data))) for a in range(0, len(data), size)]
    found, each = source.read(0, None, ranges), max(BATCH // size, 1)
    for left in range(len(ranges), 0, -each):
        for _ in source.take(found, min(each, left)):
            pass


def main() -> None:
    """Compare for some sizes of micro-batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    said = parser.parse_args()
    for kind in (Rows, WithGenerator):
        for workers, size in ((0, 64), (0, 16), (0, 1), (2, 64)):
            data = kind(said.samples)
            found: list[list[float]] = []
            for _ in range(said.rounds):
                both = [processor_us(read, data, workers, size) for read in (plain, by_place)]
                found.append(both)
            alone, ours = (min(each) for each in zip(*found, strict=True))
            what = f"{kind.__name__:<14} workers {workers}  micro-batch {size:>2}"
            print(f"{what}  plain {alone:6.1f}  by place {ours:6.1f}  more {ours - alone:5.1f} us")


if __name__ == "__main__":
    main()
