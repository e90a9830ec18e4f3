"""Measure the cost of a resume late in an epoch against an early one.

    python -m benchmarks.resume [--samples N] [--rounds N]

A run over a map-style dataset is set to a position in its first epoch. The time until its next
step is done is measured: the order of the epoch is drawn, the samples of a batch are loaded (with
workers, also the prefetched ones), and the step is taken. The positions alternate.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import surestep
from surestep.trainer.session import Session

BATCH = 10
EARLY, LATE = 10, 10_000_000


class Counted(Dataset[tuple[Tensor, int]]):
    """A dataset that makes samples when they are read, and counts them."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.loaded = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.loaded += 1
        return torch.full((4,), float(index % 7)), index % 2


def first_step(session: Session, data: Counted, position: int) -> tuple[float, int]:
    """Return the seconds until the first step from `position` is done, and the loaded samples.

    Workers continue loading while the clock is read, so their count is slightly higher.
    """
    session.state.progress = session.state.progress._replace(step=0, epoch=0, position=position)
    data.loaded.zero_()
    started = time.perf_counter()
    next(session.steps())
    return time.perf_counter() - started, int(data.loaded)


def compare(samples: int, rounds: int, workers: int) -> None:
    """Print the median of some rounds at both positions."""
    data = Counted(samples)
    task = surestep.Task(nn.Linear(4, 2), nn.CrossEntropyLoss(), train=data)
    options: dict[str, Any] = {"batch_size": BATCH, "max_steps": samples // BATCH}
    options |= {"data": {"num_workers": workers}, "logging": {"progress": "quiet"}}
    config = surestep.Config(**options)
    resumes: dict[int, list[tuple[float, int]]] = {EARLY: [], LATE: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        surestep.prepare(task, config, run=Path(folder) / "run") as session,
    ):
        first_step(session, data, EARLY)  # starts workers that stay
        for _ in range(rounds):
            for position, results in resumes.items():
                results.append(first_step(session, data, position))
    for position, results in resumes.items():
        seconds, loaded = median(s for s, _ in results), max(n for _, n in results)
        print(f"workers {workers}  sample {position:>10,}  {seconds:.3f} s  loaded {loaded}")


def main() -> None:
    """Compare, with no workers and with two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000 + 1000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for workers in (0, 2):
        compare(arguments.samples, arguments.rounds, workers)


if __name__ == "__main__":
    main()
