"""Measure how much `surestep watch` slows a plain loop: its time with and without.

python -m benchmarks.watch [--rounds N] [--device cuda]

The loop runs in one process, watched and not in turn, with the models of benchmarks.run. A ratio of
1.05 means that a watched step takes 5% more time: of the processor on a CPU, and by the clock on a
GPU, until it has finished all steps. A run has 200 steps at least, as the first steps are watched
more closely than later ones.
"""

import argparse
import time
from dataclasses import replace

import torch

from benchmarks.intervals import Interval, ratio
from benchmarks.run import pick
from benchmarks.tasks import TASKS
from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession

NAMES = ("mlp", "conv", "gpt")
SECONDS = 6.0  # of each measurement
FEWEST_STEPS = 200


class PlainLoop:
    """A plain PyTorch loop over the batches of a task.

    Args:
        name: of the task.
        device: "cpu" or "cuda".
    """

    def __init__(self, name: str, device: str) -> None:
        task = TASKS[name]()
        self._task = replace(task, inputs=task.inputs.to(device), targets=task.targets.to(device))
        self._model = self._task.build().to(device)
        self._is_on_gpu = device == "cuda"
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._first = 0

    def step(self) -> None:
        """Train on the next batch."""
        task, size = self._task, self._task.batch_size
        chosen = slice(self._first, self._first + size)
        self._first = (self._first + size) % (len(task.inputs) - size + 1)
        loss = task.loss(self._model(task.inputs[chosen]), task.targets[chosen])
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()

    def measure(self, steps: int) -> float:
        """Return the time of a step, in seconds."""
        started = self._read_time()
        for _ in range(steps):
            self.step()
        return (self._read_time() - started) / steps

    def _read_time(self) -> float:
        if not self._is_on_gpu:
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def measure_cost(name: str, rounds: int, device: str, seconds: float) -> tuple[float, Interval]:
    """Return the microseconds of a plain step, and the time of a watched one relative to it."""
    loop = PlainLoop(name, device)
    steps = max(FEWEST_STEPS, round(seconds / loop.measure(30)))
    plain, watched = [], []
    for _ in range(rounds):
        plain.append(loop.measure(steps))
        watch = WatchSession(load_rules())
        watch.run(lambda: watched.append(loop.measure(steps)))
    return sorted(plain)[rounds // 2] * 1e6, ratio(watched, plain)


def compare(name: str, rounds: int, device: str) -> str:
    """Return a line: the time of a watched step relative to a plain one."""
    usual, found = measure_cost(name, rounds, device, SECONDS)
    span = f"[{found.low:.3f}, {found.high:.3f}]"
    return f"  {name:6}{usual:10,.0f} us a step   x {found.middle:.3f} {span}"


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tasks", default="", help=f"of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in pick(arguments.tasks, list(NAMES), "task"):
        print(compare(name, arguments.rounds, arguments.device), flush=True)


if __name__ == "__main__":
    main()
