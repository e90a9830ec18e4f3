"""The plain loop with the memory settings that surestep's Plan chooses on a CPU."""

from benchmarks.loops import plain
from benchmarks.loops.fast_by_hand import keep_memory
from benchmarks.rules import Trained
from benchmarks.tasks import Task


def train(task: Task, steps: int) -> Trained:
    """Train in the usual way, with freed memory kept in the process, on huge pages."""
    keep_memory()
    return plain.train(task, steps)
