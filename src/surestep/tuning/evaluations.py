"""What a trial has measured, read from the events of its run; needs no torch."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from surestep.record.checkpoint.retention import best_steps
from surestep.record.run import Run
from surestep.record.schemas import UNDOING
from surestep.tracking.points import numbers_of
from surestep.tuning.rows import MEASURED_OPTIONS

PRUNED = "pruned by the search"  # how the reason of a pruned run begins, in its status.json


@dataclass
class Measurements:
    """What a run has measured.

    Attributes:
        evaluations: the metrics of each evaluation that are numbers, by step, in order.
        seconds: time of the steps; what a resumed run repeats counts once.
        peak_memory: most bytes on the device, or in the process on the CPU.
    """

    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory: int = 0

    def best(self, metric: str, mode: Literal["min", "max"]) -> int | None:
        """Return the step of the best evaluation; None if none has a number."""
        values = {step: found.get(metric, math.nan) for step, found in self.evaluations.items()}
        return next(iter(best_steps(values, mode)), None)


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial that ended without an error.

    Attributes:
        step: the step of its best evaluation; None if no evaluation has a number.
        metrics: those of that evaluation, "seconds", "parameters" and "peak_memory", and the
            values of MEASURED_OPTIONS that the run found.
        pruned: whether the search ended it early.
        evaluations: how many there were.
        last_step: the last step that was trained.
    """

    step: int | None
    metrics: dict[str, float]
    pruned: bool
    evaluations: int
    last_step: int

    def as_json(self) -> dict[str, Any]:
        """Return it as a message."""
        return asdict(self)


def read_measurements(run: Run) -> Measurements:
    """Read the events of a run; what a resume or a rollback undoes is left out."""
    found, seconds = Measurements(), dict[int, float]()
    for event in run.events():
        kind = event["event"]
        if kind in UNDOING:
            kept = event["step"]
            found.evaluations = {at: m for at, m in found.evaluations.items() if at <= kept}
            seconds = {first: taken for first, taken in seconds.items() if first <= kept}
        elif kind == "evaluation" and "which" not in event:
            found.evaluations[event["step"]] = numbers_of(event["metrics"])
        elif kind == "steps":
            seconds[event["first"]] = event["seconds"]
            found.peak_memory = max(found.peak_memory, event.get("peak_memory") or 0)
    found.seconds = sum(seconds.values())
    return found


def read_result(run: Run, parameters: int) -> TrialResult:
    """Read the result of a run that is finished.

    Args:
        run: the run.
        parameters: of its model.
    """
    measured, status = read_measurements(run), run.status
    step = None if run.monitor is None else measured.best(*run.monitor)
    found = run.config["config"]
    metrics: Mapping[str, float] = {} if step is None else measured.evaluations[step]
    return TrialResult(
        step=step,
        metrics={
            **metrics,
            "seconds": measured.seconds,
            "parameters": float(parameters),
            "peak_memory": float(measured.peak_memory),
            **{name: found[name] for name in MEASURED_OPTIONS if "lr_find" in run.config},
        },
        pruned=str(status["reason"]).startswith(PRUNED),
        evaluations=len(measured.evaluations),
        last_step=status["step"],
    )
