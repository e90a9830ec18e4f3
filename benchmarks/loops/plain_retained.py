"""The plain loop with the two settings of glibc's malloc that surestep's Plan chooses on a CPU."""

from benchmarks.loops import plain
from benchmarks.loops.fast_by_hand import retain_freed_memory
from benchmarks.rules import Trained
from benchmarks.tasks import Task


def train(task: Task, steps: int) -> Trained:
    """Train in the usual way, with freed memory kept in the process."""
    retain_freed_memory()
    return plain.train(task, steps)
