"""What a tracker is, and what it is given.

A tracker gets the content of the events of a run folder, in their order, in a separate thread. So
it never delays a step, and what it misses is read again from the folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from surestep.base.errors import SurestepError
from surestep.record.run import Run


class Point(NamedTuple):
    """Values of a run at one step.

    Attributes:
        step: the number of the step, from 1; 0 is before the first.
        time: when they were recorded, in seconds since 1970.
        values: by name, such as "train/loss", "val/accuracy" or "lr".
    """

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker gets.

    Attributes:
        path: the run folder.
        name: the name of that folder.
        options: every option with its value, by name, and the parameters of the recipe as "task.X".
        environment: versions, devices, git commit; the content of `environment.json`.
        state: what `start` returned for this run before; empty the first time.
    """

    path: Path
    name: str
    options: Mapping[str, Any]
    environment: Mapping[str, Any]
    state: Mapping[str, Any] = field(default_factory=dict)

    def best_checkpoint(self) -> Path | None:
        """Return the folder of the best checkpoint; None if there is none, or it is corrupted."""
        try:
            best = Run(self.path).best
        except SurestepError:
            return None
        return None if best is None else best.path


class Tracker:
    """Base class of trackers; override what you need.

    The methods are called one after another, in one thread, which is not the one that trains:
    `start`, then `log` and `checkpoint` in the order of the events, `end`, and `close`. The values
    of a test split come after `end`. If a method raises an exception, training continues, and the
    exception is reported once. After a pause, `start` and the same call are repeated. So a method
    may get some values twice, with the same step and time.

    Attributes:
        name: of the tracker, for messages and for the file with its state.

    Example:
        >>> import surestep
        >>> class PrintLoss(surestep.Tracker):
        ...     name = "print-loss"
        ...     def log(self, points):
        ...         for point in points:
        ...             print(point.step, point.values["train/loss"])
    """

    name: ClassVar[str]

    def start(self, run: TrackedRun) -> Mapping[str, Any] | None:
        """Connect to the service, or open the files.

        Args:
            run: the run folder, its options and environment.

        Returns:
            What identifies the run there, such as an id, as valid JSON: it is saved, and passed
            as `run.state` the next time.
        """

    def log(self, points: Sequence[Point]) -> None:
        """Record values.

        Args:
            points: at least one, in the order of their steps.
        """

    def checkpoint(self, path: Path, step: int, metrics: Mapping[str, float]) -> None:
        """Record a checkpoint that was written and verified.

        Args:
            path: its folder, which may have been deleted since.
            step: the step that it holds.
            metrics: of an evaluation at this step, by "set/metric"; empty if there was none.
        """

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Record how the run ended.

        Args:
            status: "finished", "stopped" or "failed".
            summary: the content of `status.json`, such as "step", "seconds" and "reason".
        """

    def close(self) -> None:
        """Disconnect. Called once after the last call, and after an exception."""
