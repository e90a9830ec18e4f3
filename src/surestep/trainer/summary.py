"""The summary of a run at its end: status, reason and counts."""

from dataclasses import dataclass
from typing import Any

from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.part import Part

ALL_DONE = "all steps are done"


@dataclass
class ThroughputCounter(Part):
    """The time of the steps that this process took; `since_step` is the step before the first."""

    since_step: int | None = None
    seconds: float = 0.0
    data_wait_s: float = 0.0
    items: float = 0.0

    def on_log(self, state: State, point: LogPoint) -> None:
        """Add the steps of a log point."""
        if self.since_step is None:
            self.since_step = point.first_step - 1
        self.seconds += point.seconds
        self.data_wait_s += point.data_wait_s
        self.items += point.items

    def as_json(self) -> dict[str, Any]:
        """Return it for status.json and the events."""
        return {
            "since_step": self.since_step,
            "seconds": round(self.seconds, 3),
            "data_wait_s": round(self.data_wait_s, 3),
            "items_per_s": round(self.items / self.seconds, 1) if self.seconds else None,
        }


def summarize_run(
    plan: Plan, state: State, timed: ThroughputCounter, status: str
) -> dict[str, Any]:
    """Return the progress and the counts of a run, for its last event and status."""
    progress, counts = state.progress, state.counts
    return {
        "reason": f"session.end({status!r})",  # unless the caller gives one
        "step": progress.step,
        "epoch": progress.epoch,
        "steps_taken": progress.steps_taken,
        "items": progress.items,
        **timed.as_json(),
        **vars(counts),
        "clipped": None if plan.max_grad_norm is None else counts.clipped,
    }
