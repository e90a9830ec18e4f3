"""A fresh process for each measurement, so that nothing that ran before touches it.

The layout of the heap, and with it the speed of a step, depends on all that a process has allocated
before. One process works at a time, and the contestants alternate round by round, so that a slow
minute of the machine hits them all.
"""

import gc
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from resource import RUSAGE_SELF, getrusage

import torch

from benchmarks.contestants import Contestant
from benchmarks.rules import Trained
from benchmarks.tasks import TASKS, Task

JUDGED_BATCHES = 16


@dataclass(frozen=True)
class Order:
    """Train `task` for a warm-up and `steps` timed steps."""

    task: str
    steps: int


@dataclass(frozen=True)
class Answer:
    """How fast a round was, and what it did."""

    step_us: float
    cpu_us: float
    faults: float  # page faults of a step
    peak_mb: float  # memory of the process, at most
    total: int  # steps asked, with warm-up
    updates: int  # steps the optimizer counted itself
    reads: int
    final_loss: float


def final_loss(task: Task, trained: Trained) -> float:
    """Give the trained model's loss on the first rows of the task."""
    rows = slice(JUDGED_BATCHES * task.batch_size)
    trained.model.eval()
    with torch.no_grad():
        return task.loss(trained.model(task.inputs[rows]), task.targets[rows]).item()


def judge(task: Task, trained: Trained) -> Answer:
    """Check the result of a contestant; AdamW's state counts its steps."""
    states = trained.optimizer.state.values()
    updates = {int(state["step"]) for state in states}
    assert len(updates) == 1, f"parameters were updated unequally often: {sorted(updates)}"
    return Answer(
        step_us=trained.stopwatch.step_us,
        cpu_us=trained.stopwatch.cpu_us,
        faults=trained.stopwatch.faults,
        peak_mb=getrusage(RUSAGE_SELF).ru_maxrss / 1024,
        total=trained.stopwatch.total,
        updates=updates.pop(),
        reads=len(trained.losses),
        final_loss=final_loss(task, trained),
    )


def serve(module: str, order: Order, connection: Connection) -> None:
    """Train once, and send what was measured."""
    torch.set_num_threads(1)
    train = import_module(f"benchmarks.loops.{module}").train
    task = TASKS[order.task]()
    gc.collect()
    answer = judge(task, train(task, order.steps))
    assert torch.get_num_threads() == 1, f"{module} changed the number of threads"
    connection.send(answer)


def measure(contestant: Contestant, order: Order) -> Answer:
    """Train a contestant in its own process, and wait for it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(contestant.module, order, theirs))
    process.start()
    theirs.close()
    try:
        answer: Answer = ours.recv()
    except EOFError as error:
        raise SystemExit(f"{contestant.name} ended on {order}; its traceback is above.") from error
    finally:
        process.join()
    return answer
