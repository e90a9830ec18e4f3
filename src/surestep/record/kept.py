"""Why the checkpoints of a run are still there, by the Plan that the run was made with."""

from pathlib import Path
from typing import Any

from surestep.base.duration import parse_duration
from surestep.base.errors import ConfigError, RunError
from surestep.record.checkpoint.keep import Retention, reasons
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
        retention = Retention(
            keep_last=int(plan.get("checkpoint.keep_last", 1)),
            keep_best=int(plan.get("checkpoint.keep_best", 1)),
            metric=metric,
            mode=mode,
            keep_every=_keep_every(plan),
            cycles=True,
        )
    except (TypeError, ValueError, OverflowError, ConfigError) as error:
        raise RunError(f"{run.path} has a plan that cannot be read: {error}.") from error
    return reasons(checkpoints, retention)


def _keep_every(plan: dict[str, Any]) -> float | None:
    said, epoch = plan.get("checkpoint.keep_every"), plan.get("steps_per_epoch")
    if said is None:
        return None
    return parse_duration(str(said)).steps(None if epoch is None else int(epoch))


def _plan(run: Run) -> dict[str, Any]:
    """Return the value of each option."""
    try:
        return {str(each["option"]): each["value"] for each in read_json(run.path / "plan.json")}
    except (TypeError, KeyError) as error:
        raise RunError(f"{run.path / 'plan.json'} cannot be read: {error!r}.") from error
