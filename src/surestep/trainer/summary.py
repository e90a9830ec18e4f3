"""What a run came to, in figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surestep.base.errors import NonFiniteError, RunError, StatusWriteError
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.run_writer import RunWriter

ALL_DONE = "all steps are done"


@dataclass
class ThroughputCounter:
    """What this process took its time for; a run that goes on was trained by others before.

    `since_step` is the step before the first one that it took, None where it took none.
    """

    since_step: int | None = None
    seconds: float = 0.0
    data_wait_s: float = 0.0
    items: float = 0.0

    def add(self, point: LogPoint) -> None:
        """Count the steps of a log point."""
        if self.since_step is None:
            self.since_step = point.first_step - 1
        self.seconds += point.seconds
        self.data_wait_s += point.data_wait_s
        self.items += point.items

    def figures(self) -> dict[str, Any]:
        """Return it as status and events tell it."""
        return {
            "since_step": self.since_step,
            "seconds": round(self.seconds, 3),
            "data_wait_s": round(self.data_wait_s, 3),
            "items_per_s": round(self.items / self.seconds, 1) if self.seconds else None,
        }


def summarize_run(
    plan: Plan, state: State, timed: ThroughputCounter, status: str
) -> dict[str, Any]:
    """Return how far a run came and how often it moved nothing, for its last event and status."""
    place, counts = state.progress, state.counts
    return {
        "reason": f"session.end({status!r})",  # where nobody gives a better one
        "step": place.step,
        "epoch": place.epoch,
        "steps_taken": place.steps_taken,
        "items": place.items,
        **timed.figures(),
        **vars(counts),
        "clipped": None if plan.max_grad_norm is None else counts.clipped,
    }


def end_of_loop(loop: Loop, error: BaseException | None, *, own: bool) -> tuple[str, str]:
    """Return status and reason of a run whose session closes and whose loop wrote no end.

    Args:
        loop: of the session.
        error: what left the session's block; None if it was left normally.
        own: the caller gave batches to `train_step()`, so only the caller knows the last one.
    """
    step, total = loop.state.progress.step, loop.plan.total_steps
    if isinstance(error, NonFiniteError):
        return "failed", str(error)
    if isinstance(error, Exception):
        return "failed", f"{type(error).__name__}: {error}"
    if error is not None:
        return "stopped", f"{type(error).__name__} after step {step} of {total}"
    if loop.interrupted:
        return "stopped", loop.interrupted
    if not own and (step >= total or loop.stopping):
        return "finished", loop.stopping or ALL_DONE
    return "stopped", f"the session was closed after step {step} of {total}"


def write_summary(recorder: RunWriter, status: str, figures: Mapping[str, Any]) -> None:
    """Write how a run ended.

    Raises:
        UntoldError: status.json cannot be written.
    """
    recorder.event("end", status=status, **figures)
    try:
        recorder.status(status, **figures)
    except RunError as error:
        why = error.__cause__
        said = why.strerror if isinstance(why, OSError) else None
        saved, hint = _left(recorder)
        raise StatusWriteError(
            f"{recorder.folder / 'status.json'} could not be written: {said or error}. The run "
            f"{status} at step {figures['step']}, and {saved}; only how it ended is not told. "
            f"{hint}."
        ) from error


def _left(recorder: RunWriter) -> tuple[str, str]:
    """Say what is left of a run whose end could not be written, and how it goes on."""
    if not recorder.folder.is_dir():
        return "its folder is gone", (
            "Bring the folder back (a disk: mount it again), and type the same again: it goes on "
            "from the newest checkpoint in it"
        )
    there = list_checkpoints(recorder.checkpoints)
    saved = f"its newest checkpoint is {there[-1]}" if there else "it has no checkpoint"
    return saved, (
        "Make the folder writable again (a full disk: free some space), and type the same again: "
        f"it {'goes on from that checkpoint' if there else 'starts anew'}"
    )
