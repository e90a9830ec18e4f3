"""Measure what a callback adds to a step of the MLP of benchmarks.run.

python -m benchmarks.callbacks [--rounds N]

Each hook of a user's callback has a separate random stream. The runs train in one process in
turn, some steps each, in another order each time: what ran before slows the next one. A ratio of
1.05 means that a step takes 5% more processor time than in the run without a callback.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

import surestep
from benchmarks.intervals import ratio
from benchmarks.step_time import make_task

STEPS = 50  # of a measurement


class Nothing(surestep.Callback):
    """Has one hook, which does nothing."""

    def on_step(self, state: Any, result: Any) -> None:
        """Draw no random number."""


class ThreeHooks(Nothing):
    """Has three hooks, which do nothing."""

    def on_batch(self, state: Any, batch: Any) -> None:
        """Draw no random number."""

    def on_backward(self, state: Any) -> None:
        """Draw no random number."""


class Drawing(surestep.Callback):
    """Draws a number in each step."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        self.draw = draw

    def on_step(self, state: Any, result: Any) -> None:
        """Draw one number."""
        self.draw()


RUNS: dict[str, Callable[[], list[surestep.Callback]]] = {
    "none": list,
    "one hook": lambda: [Nothing()],
    "three hooks": lambda: [ThreeHooks()],
    "draws from torch": lambda: [Drawing(lambda: torch.rand(()))],
    "draws from numpy": lambda: [Drawing(np.random.random)],
    "draws from Python": lambda: [Drawing(random.random)],
}


def open_run(callbacks: list[surestep.Callback], stack: ExitStack) -> Iterator[Any]:
    """Return the steps of a run of the MLP, which is closed with the stack."""
    task, options = make_task("mlp")
    options |= {"max_steps": 10**7, "logging.progress": "quiet", "schedule.name": "constant"}
    options |= {"checkpoint.every": "off", "validation.every": "off"}
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    config = surestep.Config.from_options(options)
    made = surestep.prepare(task, config, run=folder / "run", callbacks=callbacks)
    return iter(stack.enter_context(made).steps())


def measure(steps: Iterator[Any], count: int) -> float:
    """Return the processor time of a step, in seconds."""
    began = time.process_time()
    for _ in range(count):
        next(steps)
    return (time.process_time() - began) / count


def main() -> None:
    """Print a line for each kind of callback."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with ExitStack() as stack:
        runs = {name: open_run(make(), stack) for name, make in RUNS.items()}
        for steps in runs.values():
            measure(steps, STEPS)
        found = {name: list[float]() for name in runs}
        for _ in range(rounds):
            for name in random.sample(list(runs), len(runs)):
                found[name].append(measure(runs[name], STEPS))
    print(f"  none{' ' * 16}{sorted(found['none'])[rounds // 2] * 1e6:6.0f} us a step")
    for name in list(runs)[1:]:
        span = ratio(found[name], found["none"])
        print(f"  {name:20}x {span.middle:.3f} [{span.low:.3f}, {span.high:.3f}]")


if __name__ == "__main__":
    main()
