"""The summary of a run at its end: status, reason and counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surestep.base.errors import NonFiniteError, RunError, StatusWriteError
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.run_writer import RunWriter, describe_error_end

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


def end_of_loop(loop: Loop, error: BaseException | None, *, is_manual: bool) -> tuple[str, str]:
    """Return status and reason of a run whose session closes without `end()`.

    If `train_step()` was used, the run is manual: only the caller knows its last step.
    """
    step, total = loop.state.progress.step, loop.plan.total_steps
    if isinstance(error, NonFiniteError):
        return "failed", str(error)
    if isinstance(error, Exception):
        return describe_error_end(error)
    if error is not None:
        return "stopped", f"{type(error).__name__} after step {step} of {total}"
    if loop.interrupted:
        return "stopped", loop.interrupted
    if not is_manual and (step >= total or loop.stopping):
        return "finished", loop.stopping or ALL_DONE
    return "stopped", f"the session was closed after step {step} of {total}"


def write_summary(recorder: RunWriter, status: str, summary: Mapping[str, Any]) -> None:
    """Write how a run ended; raise a StatusWriteError if status.json cannot be written."""
    recorder.event("end", status=status, **summary)
    try:
        recorder.status(status, **summary)
    except RunError as error:
        cause, folder = error.__cause__, recorder.folder
        reason = cause.strerror if isinstance(cause, OSError) else None
        existing = list_checkpoints(recorder.checkpoints) if folder.is_dir() else []
        kept = f"its newest checkpoint is {existing[-1]}" if existing else "it has no checkpoint"
        again = "resumes from that checkpoint" if existing else "starts from scratch"
        hint = "Make the folder writable again (free space if the disk is full)"
        if not folder.is_dir():
            kept, hint = "its folder is gone", "Restore the folder (mount its disk again)"
            again = "resumes from its newest checkpoint"
        raise StatusWriteError(
            f"{folder / 'status.json'} could not be written: {reason or error}. The run {status} "
            f"at step {summary['step']}, and {kept}; only its end is not recorded. {hint}, and run "
            f"the same command again: it {again}."
        ) from error
