"""Send what a run recorded to a tracker when the run has ended."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from surestep.base.errors import RunError, SurestepError
from surestep.base.missing_torch import is_missing_torch
from surestep.base.secrets import describe_error
from surestep.record.lock import is_locked
from surestep.record.run import Run
from surestep.tracking.follower import Delivery
from surestep.tracking.tracker import Tracker

if TYPE_CHECKING:
    from torch import nn


def replay_run(
    run: str | Path,
    tracker: Tracker,
    *,
    from_start: bool = False,
    load_model: "Callable[[], nn.Module] | None" = None,
) -> int:
    """Send what a run recorded to a tracker, from where the last delivery ended.

    Args:
        run: the run folder.
        tracker: gets the records.
        from_start: send everything again, in place of what the tracker has.
        load_model: returns the model with the weights of the best checkpoint, for MLflow.

    Returns:
        How many bytes of the events were sent.

    Raises:
        RunError: the run is running, its folder cannot be read, or the tracker failed.
    """
    folder = Run(run).path
    if is_locked(folder):
        raise RunError(f"{folder} is running, and sends its records itself. Wait until it ends.")
    delivery = Delivery(folder, tracker, from_start=from_start, load_model=load_model)
    before = delivery.offset
    try:
        delivery.deliver()
    except SurestepError:
        raise
    except Exception as error:  # whatever the tracker's library raises
        if is_missing_torch(error):
            raise
        where = f"at byte {delivery.offset:,} of {folder / 'events.jsonl'}"
        raise RunError(f"{tracker.name} failed {where}: {describe_error(error)}.") from error
    finally:
        delivery.close()
    return delivery.offset - before


def list_recorded(folder: Path) -> list[str]:
    """Return the names of the trackers that a run folder has records of."""
    return sorted(path.stem for path in (folder / "trackers").glob("*.json"))
