"""The time of a step of a training run that also does something else, such as copying its records.

The processor time is that of all threads of the training process. "threads" is the processor time
that threads other than the training one add to a step. Other programs on the machine hardly change
it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import TensorDataset

import surestep
from benchmarks.intervals import difference, ratio
from benchmarks.tasks import TASKS

NAMES = ("digits", "conv", "wide_conv", "gpt")
SECONDS = 40.0  # of each measurement
START_S = 5.0  # of training before the measurement


class StepTime(NamedTuple):
    """The mean time of a step, in seconds."""

    wall: float
    cpu: float  # of all threads of the process
    threads: float  # of all threads but the one that trains


def make_task(name: str) -> tuple[surestep.Task, dict[str, Any]]:
    """Return the task and its options: the recipe `digits`, or a task of benchmarks.run."""
    if name == "digits":
        from surestep.recipes import digits

        return digits.task(), {"batch_size": 64, "optim.lr": 3e-3}
    task = TASKS[name]()
    data = TensorDataset(task.inputs, task.targets)
    made = surestep.Task(task.build(), loss=task.loss, items=task.items, train=data)
    return made, {"batch_size": task.batch_size}


def measure(
    name: str, options: dict[str, Any], folder: Path, is_ready: Callable[[], bool]
) -> StepTime:
    """Train in this process; return the time of a step from when `is_ready` returns true.

    Args:
        name: of NAMES.
        options: beside those of the task.
        folder: of the run.
        is_ready: whether what is measured has started.
    """
    torch.set_num_threads(1)
    task, usual = make_task(name)
    usual |= {"max_steps": 10**7, "logging.progress": "quiet", "schedule.name": "constant"}
    usual |= {"checkpoint.every": "off", "validation.every": "off"}
    waiting, began, step = True, time.monotonic(), 0
    wall = cpu = own = 0.0
    config = surestep.Config.from_options(usual | options)
    with surestep.prepare(task, config, run=folder) as session:
        for result in session.steps():
            if result.step % 20:
                continue
            now = time.monotonic()
            if waiting and now - began > START_S and is_ready():
                waiting, began, step = False, now, result.step
                wall, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
            elif not waiting and now - began > SECONDS:
                steps = result.step - step
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                own = time.thread_time() - own
                break
    return StepTime(wall / steps, cpu / steps, (cpu - own) / steps)


def describe(name: str, bare: list[StepTime], more: list[StepTime]) -> str:
    """Return a line: the time of a step in `more` relative to `bare`, round by round."""
    wall = ratio([t.wall for t in more], [t.wall for t in bare])
    cpu = ratio([t.cpu for t in more], [t.cpu for t in bare])
    added = difference([t.threads for t in more], [t.threads for t in bare])
    usual = sorted(t.cpu for t in bare)[len(bare) // 2]
    shares = [each / usual for each in (added.middle, added.low, added.high)]
    return (
        f"  {name:10}{usual * 1e6:9,.0f} us a step   threads +{shares[0]:.2%} [{shares[1]:.2%}, "
        f"{shares[2]:.2%}]   processor {cpu.middle:.3f} [{cpu.low:.3f}, {cpu.high:.3f}]   "
        f"wall {wall.middle:.3f} [{wall.low:.3f}, {wall.high:.3f}]"
    )
