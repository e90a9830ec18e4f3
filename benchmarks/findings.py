"""Measure what the rules inside Trainer cost a step: its processor time with and without them.

python -m benchmarks.findings [--rounds N]

One run trains, and the rules see its log points in every second measurement. A ratio of 1.01 means
that a step takes 1% more processor time. On a busy machine it varies more than the rules take, so
their processor time, as a share of that of a step, is measured directly as well.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import surestep
from benchmarks.intervals import ratio
from benchmarks.run import pick
from benchmarks.step_time import make_task
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.part import Functions
from surestep.engine.step.train_step import StepResult

NAMES = ("mlp", "conv", "gpt")
SECONDS = 2.0  # of each measurement
EVERY = 50  # steps between log points, as by default


def measure(steps: Iterator[StepResult], count: int) -> float:
    """Return the processor time of a step, in seconds."""
    started = time.process_time()
    for _ in range(count):
        next(steps)
    return (time.process_time() - started) / count


def compare(name: str, rounds: int, folder: Path) -> str:
    """Return a line: the time of a step with the rules relative to one without."""
    task, usual = make_task(name)
    usual |= {"max_steps": 10**7, "logging.progress": "quiet", "checkpoint.every": "off"}
    with surestep.prepare(task, surestep.Config.from_options(usual), run=folder) as session:
        steps = session.steps()
        measure(steps, EVERY)
        log_points = max(2, round(SECONDS / measure(steps, 4 * EVERY) / EVERY))
        without, checked, taken = [], [], 0.0
        others = [part for part in session.loop.parts if part is not session.checks]

        def on_log(state: State, point: LogPoint) -> None:
            nonlocal taken
            started = time.thread_time()
            session.checks.on_log(state, point)
            taken += time.thread_time() - started

        for _ in range(rounds):
            session.loop.attach(others, session.messages.notify)
            without.append(measure(steps, log_points * EVERY))
            session.loop.attach(
                [*others, Functions("checks", on_log=on_log)], session.messages.notify
            )
            checked.append(measure(steps, log_points * EVERY))
    found, middle = ratio(checked, without), sorted(without)[rounds // 2] * 1e6
    share = taken / (sum(checked) * log_points * EVERY)
    span = f"[{found.low:.4f}, {found.high:.4f}]"
    return f"  {name:6}{middle:10,.0f} us a step   rules {share:.2%}   x {found.middle:.4f} {span}"


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tasks", default="", help=f"of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in pick(arguments.tasks, list(NAMES), "task"):
        with tempfile.TemporaryDirectory() as folder:
            print(compare(name, arguments.rounds, Path(folder) / "run"), flush=True)


if __name__ == "__main__":
    main()
