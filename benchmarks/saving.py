"""Measure the cost of saving: how long a step waits, and how much slower a run with saves is.

python -m benchmarks.saving                # both, about two minutes
python -m benchmarks.saving --tasks mlp    # how much slower one of the tasks of benchmarks.run is
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import nn
from torch.utils.data import TensorDataset

import surestep
from benchmarks.intervals import Interval, difference
from benchmarks.loops.surestep_loop import make_config
from benchmarks.run import pick
from benchmarks.tasks import TASKS
from surestep.trainer.session import Session

WIDTH, LAYERS = 2048, 4  # 4 x 16 MiB of weights, three times with the moments of AdamW: 200 MB
ROUNDS = 5
EVERY = 200  # steps between two saves, in the results
# Steps of a segment, which takes at least as long as a save, so that its whole cost is in it.
SEGMENT = {"mlp": 200, "conv": 50, "gpt": 20}
TASK_ROUNDS = {"mlp": 100, "conv": 40, "gpt": 20}


def open_session(folder: Path, *, background: bool) -> Session:
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


def measure_stalls(*, background: bool) -> list[float]:
    """Return how long each save kept the run waiting, in seconds; the first makes the buffers."""
    seconds = []
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        open_session(Path(folder) / "run", background=background) as session,
    ):
        for _ in session.steps():
            session.saving.collect(wait=True)
            start = time.perf_counter()
            session.saving.save_async()
            seconds.append(time.perf_counter() - start)
            if len(seconds) > ROUNDS:
                return seconds[1:]
    raise AssertionError("too few steps")


class SegmentTime(NamedTuple):
    """The time of a segment, in seconds."""

    wall: float
    cpu: float  # of all threads


Saving = Literal["with a save", "without", "torch.save"]


def run_segment(
    session: Session, steps: Iterator[object], count: int, saving: Saving
) -> SegmentTime:
    """Take `count` steps; with a save, it starts before them and is written at the end."""
    wall, cpu = time.perf_counter(), time.process_time()
    if saving == "with a save":
        session.saving.save_async()
    elif saving == "torch.save":
        save_by_hand(session, session.run.path / "by_hand.pt")
    for _ in range(count):
        next(steps)
    session.saving.collect(wait=True)
    return SegmentTime(time.perf_counter() - wall, time.process_time() - cpu)


def save_by_hand(session: Session, path: Path) -> None:
    """Save as a loop written by hand does; nothing is synced, hashed or read back."""
    states = {
        "model": session.state.model.state_dict(),
        "optimizer": session.optimizer.state_dict(),
    }
    torch.save(states, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def run_rounds(name: str, rounds: int) -> dict[Saving, list[SegmentTime]]:
    """Run a segment with each kind of saving per round, in one run and in a random order."""
    task, count, draw = TASKS[name](), SEGMENT[name], random.Random(0)
    task_to_train = surestep.Task(
        model=task.build(),
        loss=task.loss,
        items=task.items,
        train=TensorDataset(task.inputs, task.targets),
    )
    times: dict[Saving, list[SegmentTime]] = {saving: [] for saving in get_args(Saving)}
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        surestep.prepare(
            task_to_train, make_config(task, 10**6), run=Path(folder) / "run"
        ) as session,
    ):
        steps = iter(session.steps())
        for _ in range(3):  # the first save makes the buffers, the third deletes the first
            run_segment(session, steps, count, "with a save")
        for _ in range(rounds):
            for saving in draw.sample(list(times), len(times)):
                times[saving].append(run_segment(session, steps, count, saving))
    return times


def slowdown(name: str, rounds: int) -> str:
    """Return how much longer a task takes with a save every 200 steps: the median of the rounds."""
    times = run_rounds(name, rounds)
    walls = {saving: [s.wall for s in segments] for saving, segments in times.items()}
    cpus = {saving: [s.cpu for s in segments] for saving, segments in times.items()}
    usual = EVERY / SEGMENT[name] * statistics.median(walls["without"])
    lines = [f"  {name:5}{usual / EVERY * 1e6:9,.0f} us a step"]
    for saving in ("with a save", "torch.save"):
        wall = difference(walls[saving], walls["without"])
        cpu = difference(cpus[saving], cpus["without"])
        share = Interval(*(1.0 + s / usual for s in (wall.middle, wall.low, wall.high)))
        lines.append(
            f"    {saving:12}{wall.middle * 1e3:5.1f} ms a save [{wall.low * 1e3:.1f}, "
            f"{wall.high * 1e3:.1f}]: {share.middle:.3f} times the time without "
            f"[{share.low:.3f}, {share.high:.3f}]; {cpu.middle * 1e3:.1f} ms of processor time"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the time that a step waits for a save, and the slowdown of each task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tasks", default="", help=f"of {','.join(SEGMENT)}; only their slowdown")
    parser.add_argument("--rounds", type=int, help="segments of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.tasks:
        at_once = statistics.median(measure_stalls(background=False))
        behind = statistics.median(measure_stalls(background=True))
        print(f"a save of 200 MB, median of {ROUNDS}:")
        print(f"  written at once      {at_once * 1e3:7.1f} ms")
        print(f"  in the background    {behind * 1e3:7.1f} ms of waiting ({behind / at_once:.1%})")
    print(f"with a save every {EVERY} steps, median of rounds and its 95% interval:")
    for name in pick(arguments.tasks, list(SEGMENT), "task"):
        print(slowdown(name, arguments.rounds or TASK_ROUNDS[name]), flush=True)


if __name__ == "__main__":
    main()
