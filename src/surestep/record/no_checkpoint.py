"""Whether a run without checkpoints ever had one, and how that is told."""

from pathlib import Path

from surestep.base.errors import RunError
from surestep.record.events import read_events


def has_published(run: Path) -> bool:
    """Say whether the run has ever published a checkpoint.

    Raises:
        RunError: its events cannot be read.
    """
    events = run / "events.jsonl"
    return events.exists() and any(e["event"] == "checkpoint" for e in read_events(events))


def no_checkpoint_message(run: Path) -> str:
    """Say that a run has no checkpoint: not yet, or not any more."""
    try:
        gone = has_published(run)
    except RunError:  # nothing more is known than that there is none
        gone = False
    if not gone:
        return f"{run} has no checkpoint yet."
    return (
        f"{run} had checkpoints, and has none now. Put one back, or start anew in another folder "
        "with --run (run= in Python)."
    )
