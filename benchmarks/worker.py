"""Run each measurement in a fresh process, so that earlier ones do not affect it.

The layout of the heap, and with it the speed of a step, depends on all that a process has allocated
before. One process runs at a time, and the contestants alternate within a round, so that a slow
minute of the machine affects all of them.
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

EVALUATED_BATCHES = 16


@dataclass(frozen=True)
class Job:
    """Train `task` for a warm-up and `steps` timed steps."""

    task: str
    steps: int


@dataclass(frozen=True)
class Measurement:
    """The speed of one round, and proof of the work."""

    step_us: float
    cpu_us: float
    faults: float  # page faults of a step
    peak_mb: float  # memory of the process on its device, at most
    total: int  # requested steps, with warm-up
    updates: int  # steps that the optimizer counted
    reads: int
    final_loss: float


def final_loss(task: Task, trained: Trained) -> float:
    """Return the trained model's loss on the first rows of the task."""
    rows = slice(EVALUATED_BATCHES * task.batch_size)
    trained.model.eval()
    inputs, targets = task.place(task.inputs[rows], task.targets[rows])
    with torch.no_grad():
        return task.loss(trained.model(inputs), targets).item()


def peak_memory(device: str) -> float:
    """Return the MiB that the process has used at most, of the GPU or of the host."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return getrusage(RUSAGE_SELF).ru_maxrss / 1024


def summarize(task: Task, trained: Trained) -> Measurement:
    """Summarize the training of a contestant; AdamW's state counts its steps."""
    states = trained.optimizer.state.values()
    updates = {int(state["step"]) for state in states}
    assert len(updates) == 1, f"parameters were updated unequally often: {sorted(updates)}"
    return Measurement(
        step_us=trained.stopwatch.step_us,
        cpu_us=trained.stopwatch.cpu_us,
        faults=trained.stopwatch.faults,
        peak_mb=peak_memory(task.device),
        total=trained.stopwatch.total,
        updates=updates.pop(),
        reads=len(trained.losses),
        final_loss=final_loss(task, trained),
    )


def serve(module: str, job: Job, connection: Connection) -> None:
    """Train once, and send the measurement."""
    torch.set_num_threads(1)
    train = import_module(f"benchmarks.loops.{module}").train
    task = TASKS[job.task]()
    gc.collect()
    measurement = summarize(task, train(task, job.steps))
    assert torch.get_num_threads() == 1, f"{module} changed the number of threads"
    connection.send(measurement)


def measure(contestant: Contestant, job: Job) -> Measurement:
    """Train a contestant in its own process, and wait for it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(contestant.module, job, theirs))
    process.start()
    theirs.close()
    try:
        measurement: Measurement = ours.recv()
    except EOFError as error:
        raise SystemExit(f"{contestant.name} ended on {job}; its traceback is above.") from error
    finally:
        process.join()
    return measurement
