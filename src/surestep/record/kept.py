"""Why the checkpoints of a run are still there, by the Plan that the run was made with."""

from pathlib import Path
from typing import Any

from surestep.base.errors import RunError
from surestep.record.checkpoint.keep import reasons
from surestep.record.checkpoint.listing import Saved
from surestep.record.files import read_json
from surestep.record.run import Run


def why_kept(run: Run, checkpoints: list[Saved]) -> dict[Path, list[str]]:
    """Return for each checkpoint what it is kept as, such as "best" and "last".

    Raises:
        RunError: the run's plan or status cannot be read.
    """
    plan = _plan(run)
    try:
        metric, mode = run.judged_by or (None, "min")
        return reasons(
            checkpoints,
            keep_last=int(plan.get("checkpoint.keep_last", 1)),
            keep_best=int(plan.get("checkpoint.keep_best", 1)),
            metric=metric,
            mode=mode,
            cycles=True,
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{run.path} has a plan that cannot be read: {error}.") from error


def _plan(run: Run) -> dict[str, Any]:
    """Return the value of each option."""
    try:
        return {str(each["option"]): each["value"] for each in read_json(run.path / "plan.json")}
    except (TypeError, KeyError) as error:
        raise RunError(f"{run.path / 'plan.json'} cannot be read: {error!r}.") from error
