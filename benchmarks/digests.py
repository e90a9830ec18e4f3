"""Measure what the digests of samples add to a step of a run that reads a stream.

python -m benchmarks.digests [--rounds N]

A run computes digests in every second measurement, of some steps each. A ratio of 1.01 means that
a step takes 1% more processor time with them.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import surestep
from benchmarks.intervals import difference, ratio
from surestep.engine.data import stream_loader

STEPS = 20  # of a measurement
# The shape of a sample, and the samples of a batch.
CASES = {
    "MLP, 8 samples": ((2,), 8),
    "MLP, 64 samples": ((2,), 64),
    "MLP, 512 samples": ((2,), 512),
    "images, 32 samples": ((3, 64, 64), 32),
}


class Samples(IterableDataset[tuple[Tensor, int]]):
    """The same few samples without end."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.x = torch.randn(64, *shape)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        while True:
            yield from ((x, index % 3) for index, x in enumerate(self.x))


def measure(
    shape: tuple[int, ...], batch_size: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Return the processor times of a step with and without digests, in seconds."""
    width, worker = torch.Size(shape).numel(), stream_loader._StreamWorker
    digests = worker._digest, lambda *_: None
    layers = (nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))
    model = nn.Sequential(nn.Flatten(), *layers)
    task = surestep.Task(model, loss="multiclass", train=Samples(shape))
    options: dict[str, Any] = {"max_steps": 10**7, "batch_size": batch_size}
    options |= {"logging.progress": "quiet", "schedule.name": "constant", "checkpoint.every": "off"}
    config, found = surestep.Config.from_options(options), (list[float](), list[float]())
    with (
        tempfile.TemporaryDirectory() as folder,
        surestep.prepare(task, config, run=Path(folder) / "run") as session,
    ):
        steps = iter(session.steps())
        for number in range(-4, 2 * rounds):
            type.__setattr__(worker, "_digest", digests[number % 2])
            began = time.process_time()
            for _ in range(STEPS):
                next(steps)
            if number >= 0:
                found[number % 2].append((time.process_time() - began) / STEPS)
    type.__setattr__(worker, "_digest", digests[0])
    return found


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for name, (shape, batch_size) in CASES.items():
        with_digests, without = measure(shape, batch_size, rounds)
        span, added = ratio(with_digests, without), difference(with_digests, without)
        print(
            f"  {name:20} {sorted(without)[rounds // 2] * 1e6:6.0f} us a step, "
            f"x {span.middle:.3f} [{span.low:.3f}, {span.high:.3f}], {added.middle * 1e6:+.1f} us"
        )


if __name__ == "__main__":
    main()
