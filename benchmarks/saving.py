"""What saving costs training: how long a step waits, and how much slower a run with saves is.

python -m benchmarks.saving
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import surestep
from surestep.base.duration import Cadence
from surestep.trainer.session import Session

WIDTH, LAYERS = 2048, 4  # 4 x 16 MiB of weights, three times with the moments of AdamW: 200 MB
ROUNDS = 5
STEPS, PAIRS = 4000, 7


def session_of(folder: Path, *, background: bool) -> Session:
    """Open a run whose State has 200 MB."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)), nn.Linear(WIDTH, 2))
    x, y = torch.randn(64, WIDTH), torch.randint(0, 2, (64,))
    config = surestep.Config(
        max_steps=1000,
        batch_size=8,
        logging=surestep.Logging(progress="quiet"),
        checkpoint=surestep.Checkpoint(async_save=background, keep_last=1),
    )
    task = surestep.Task(model, nn.CrossEntropyLoss(), (x, y))
    return surestep.prepare(task, config, run=folder)


def stalls(*, background: bool) -> list[float]:
    """Return how long each save kept the run waiting, in seconds; the first makes the buffers."""
    found = []
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        session_of(Path(folder) / "run", background=background) as session,
    ):
        for _ in session.steps():
            session.saving.collect(wait=True)
            start = time.perf_counter()
            session.saving.begin()
            found.append(time.perf_counter() - start)
            if len(found) > ROUNDS:
                return found[1:]
    raise AssertionError("too few steps")


def seconds_a_step(folder: Path, every: str) -> float:
    """Train the small MLP of the other benchmarks, with a save each `every`."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3)
    )
    x, y = torch.randn(6400, 2), torch.randint(0, 3, (6400,))
    config = surestep.Config(
        max_steps=STEPS,
        batch_size=64,
        logging=surestep.Logging(progress="quiet"),
        checkpoint=surestep.Checkpoint(every=every),
    )
    task = surestep.Task(model, nn.CrossEntropyLoss(), (x, y))
    with surestep.prepare(task, config, run=folder) as session:
        saving = Cadence(session.plan.checkpoint_every, session.plan.steps_per_epoch)
        start = time.perf_counter()
        for result in session.steps():
            if saving.due(result.step, 0, 0):
                session.saving.begin()
        return (time.perf_counter() - start) / STEPS


def slowdown() -> float:
    """Return how much longer a step takes with a save every 200 steps: the median of pairs."""
    ratios = []
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            without = seconds_a_step(Path(folder) / "without", f"{10 * STEPS} steps")
            ratios.append(seconds_a_step(Path(folder) / "with", "200 steps") / without)
    return statistics.median(ratios)


def main() -> None:
    """Print the stall of both ways."""
    at_once = statistics.median(stalls(background=False))
    behind = statistics.median(stalls(background=True))
    print(f"a save of 200 MB, median of {ROUNDS}:")
    print(f"  written at once      {at_once * 1e3:7.1f} ms")
    print(f"  in the background    {behind * 1e3:7.1f} ms of waiting ({behind / at_once:.1%})")
    print(f"the MLP with a save every 200 steps: {slowdown():.3f} times the time without")


if __name__ == "__main__":
    main()
