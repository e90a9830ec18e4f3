"""Why the checkpoints of a run are still there, by the Plan that the run was made with."""

from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError, RunError
from surestep.config.duration import parse_duration
from surestep.record.checkpoint.listing import CheckpointInfo
from surestep.record.checkpoint.retention import RetentionPolicy, retention_reasons
from surestep.record.io import read_json
from surestep.record.run import Run
from surestep.record.run_schemas import PLAN


def explain_retention(run: Run, checkpoints: list[CheckpointInfo]) -> dict[Path, list[str]]:
    """Return for each checkpoint what it is kept as, such as "best" and "last".

    Raises:
        RunError: the run's plan or status cannot be read.
    """
    decided = read_json(run.path / "plan.json", PLAN)
    plan = {each["option"]: each["value"] for each in decided}
    metric, mode = run.judged_by or (None, "min")
    try:
        keep_every = _keep_every(plan)
    except (ValueError, OverflowError, ConfigError) as error:
        raise RunError(f"{run.path / 'plan.json'} cannot be read: {error}.") from error
    retention = RetentionPolicy(
        keep_last=plan.get("checkpoint.keep_last", 1),
        keep_best=plan.get("checkpoint.keep_best", 1),
        metric=metric,
        mode=mode,
        keep_every=keep_every,
        cycles=True,
        goes_back=plan.get("on_spike") == "rollback",
    )
    return retention_reasons(checkpoints, retention)


def _keep_every(plan: dict[str, Any]) -> float | None:
    said = plan.get("checkpoint.keep_every")
    return None if said is None else parse_duration(said).steps(plan.get("steps_per_epoch"))
