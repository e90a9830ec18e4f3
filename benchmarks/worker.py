"""One process per contestant, kept alive, so that no framework's global state touches another.

The parent says "train this task now" over a pipe and waits: one process works at a time, and the
contestants alternate round by round, so that a slow minute of the machine hits them all.
"""

import gc
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection

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
    """Look at what a contestant handed back; AdamW's own state says how often it stepped."""
    states = trained.optimizer.state.values()
    updates = {int(state["step"]) for state in states}
    assert len(updates) == 1, f"parameters were updated unequally often: {sorted(updates)}"
    return Answer(
        step_us=trained.stopwatch.step_us,
        total=trained.stopwatch.total,
        updates=updates.pop(),
        reads=len(trained.losses),
        final_loss=final_loss(task, trained),
    )


def serve(module: str, connection: Connection) -> None:
    """Answer orders until the pipe brings None."""
    torch.set_num_threads(1)
    train = import_module(f"benchmarks.loops.{module}").train
    tasks: dict[str, Task] = {}
    while (order := connection.recv()) is not None:
        if order.task not in tasks:
            tasks[order.task] = TASKS[order.task]()
        gc.collect()
        answer = judge(tasks[order.task], train(tasks[order.task], order.steps))
        assert torch.get_num_threads() == 1, f"{module} changed the number of threads"
        connection.send(answer)


class Worker:
    """The parent's end of a contestant's process."""

    def __init__(self, contestant: Contestant) -> None:
        context = get_context("spawn")
        self.contestant = contestant
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(contestant.module, theirs))
        self._process.start()
        theirs.close()

    def train(self, order: Order) -> Answer:
        """Let the contestant train now, and wait for it."""
        try:
            self._connection.send(order)
            answer: Answer = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            name = self.contestant.name
            raise SystemExit(f"{name} died on {order}; its traceback stands above.") from error
        return answer

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        self._process.terminate()
        self._process.join()
