"""What a tracker is, and what it is given.

A tracker gets the content of the events of a run folder, in their order, in a separate thread. So
it never delays a step, and what it misses is read again from the folder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from surestep.base.errors import SurestepError
from surestep.record.checkpoint.reader import CheckpointInfo
from surestep.record.io import read_json
from surestep.record.run import Run
from surestep.record.schemas import SIGNATURE

if TYPE_CHECKING:
    from torch import nn


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


class Histogram(NamedTuple):
    """How the finite values of a layer are distributed.

    Attributes:
        low: the smallest value.
        high: the largest value.
        counts: values in each of several ranges of the same width, from `low` to `high`.
        total: the sum of the values.
        squares: the sum of their squares.
    """

    low: float
    high: float
    counts: Sequence[int]
    total: float
    squares: float

    @property
    def edges(self) -> list[float]:
        """The limits of the ranges, one more than there are counts."""
        width = (self.high - self.low) / len(self.counts)
        return [*(self.low + width * index for index in range(len(self.counts))), self.high]


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker gets.

    Attributes:
        path: the run folder.
        name: the name of that folder.
        options: every option with its value, by name, and the parameters of the recipe as "task.X".
        environment: versions, devices, git commit; the content of `environment.json`.
        key: identifies the run for this tracker, also if `start` did not return, as in a process
            that was killed. Store it in the service, and search for it before you create a run.
        state: what `start` returned for this run before; empty the first time.
        from_start: everything is sent again, and replaces what was recorded before.
        delivered: bytes of `events.jsonl` that were delivered before, by any process.
        study: the name of the search that the run is a trial of; None if it is not one.
        load_model: returns a new model on the CPU, with the weights of the best checkpoint, in eval
            mode; None if the tracker does not use it, or the code of the model is not at hand.
    """

    path: Path
    name: str
    options: Mapping[str, Any]
    environment: Mapping[str, Any]
    key: str
    state: Mapping[str, Any] = field(default_factory=dict)
    from_start: bool = False
    delivered: int = 0
    study: str | None = None
    load_model: Callable[[], "nn.Module"] | None = None

    @property
    def signature(self) -> dict[str, Any] | None:
        """What the model takes and returns: lists "inputs" and "outputs" of name, dtype and shape.

        In a shape, -1 is the number of samples. None if the model was not called before training.
        """
        path = self.path / "signature.json"
        return dict(read_json(path, SIGNATURE)) if path.exists() else None

    @property
    def best(self) -> CheckpointInfo | None:
        """The best checkpoint; None if there is none, or it is corrupted."""
        try:
            return Run(self.path).find_checkpoint("best")
        except SurestepError:
            return None

    def best_checkpoint(self) -> Path | None:
        """Return the folder of the best checkpoint; None if there is none, or it is corrupted."""
        return None if self.best is None else self.best.path

    def is_best(self, path: Path) -> bool:
        """Return whether a checkpoint is the best so far; False if no metric decides that."""
        try:
            return Run(self.path).monitor is not None and self.best_checkpoint() == path
        except SurestepError:
            return False


@dataclass(frozen=True)
class StudyResult:
    """The result of a search, whose trials were tracked as runs.

    Attributes:
        name: of the study, as the trials have it in `TrackedRun.study`.
        folder: of the study.
        params: of the best trial, by name.
        metrics: of the best trial, and numbers of the study, by name.
        files: to store with the study, such as its report.
    """

    name: str
    folder: Path
    params: Mapping[str, Any]
    metrics: Mapping[str, float]
    files: Sequence[Path] = ()


class Tracker:
    """Base class of trackers; override what you need.

    The methods are called one after another, in one thread, which is not the one that trains:
    `start`, then `log`, `histograms`, `resume` and `checkpoint` in the order of the events,
    `findings`, `end`, and `close`. The values of a test split come after `end`. If a method raises
    an exception, training continues, and the exception is reported once. After a pause, `start` and
    the same call are repeated. So a method may get some values twice, with the same step and time.

    Attributes:
        name: of the tracker, for messages and for the file with its state.
        uses_model: whether it calls `run.load_model`.

    Example:
        >>> import surestep
        >>> class PrintLoss(surestep.Tracker):
        ...     name = "print-loss"
        ...     def log(self, points):
        ...         for point in points:
        ...             print(point.step, point.values["train/loss"])
    """

    name: ClassVar[str]
    uses_model: ClassVar[bool] = False

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

    def histograms(self, step: int, time: float, histograms: Mapping[str, Histogram]) -> None:
        """Record histograms; called with the option `logging.histograms`.

        Args:
            step: the step after which they were computed.
            time: when, in seconds since 1970.
            histograms: by name, such as "weights/blocks.0.attention" or "gradients/head".
        """

    def resume(self, path: Path, step: int) -> None:
        """Record from which checkpoint the run continues.

        Args:
            path: its folder, in this run, or in the run of `--from`. It may have been deleted.
            step: the step that it holds.
        """

    def checkpoint(self, path: Path, step: int, metrics: Mapping[str, float]) -> None:
        """Record a checkpoint that was written and verified.

        Args:
            path: its folder, which may have been deleted since.
            step: the step that it holds.
            metrics: of an evaluation at this step, by "set/metric"; empty if there was none.
        """

    def findings(self, findings: Sequence[Mapping[str, Any]]) -> None:
        """Record what the run measured that is probably not meant.

        Called before each `end`. The findings replace those of an earlier process of the run.

        Args:
            findings: each with "rule" (its code, such as "SS605"), "name", "severity" ("error",
                "warning", "speed" or "info"), "file", "line", "column", "message", "evidence" and
                "fix"; may be empty.
        """

    def end(self, status: str, summary: Mapping[str, Any]) -> None:
        """Record how the run ended.

        Args:
            status: "finished", "stopped" or "failed".
            summary: the content of `status.json`, such as "step", "seconds" and "reason".
        """

    def close(self) -> None:
        """Disconnect. Called once after the last call, and after an exception."""

    def end_study(self, study: StudyResult) -> None:
        """Record the result of a search; the only call of this object.

        Several workers may call it for the same study, and a longer search calls it again.

        Args:
            study: its best trial, and files such as its report.
        """
