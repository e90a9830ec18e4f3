"""Decide which checkpoints to keep, the last, the best and milestones, and delete the others."""

import math
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from surestep.base.errors import ConfigError, RunError
from surestep.base.files import temp_name
from surestep.config.duration import count_periods, parse_duration
from surestep.record.checkpoint.discovery import scan_checkpoints
from surestep.record.checkpoint.reader import CheckpointInfo
from surestep.record.incident import referenced_checkpoints
from surestep.record.io import read_json
from surestep.record.schemas import PLAN


def best_first(
    checkpoints: list[CheckpointInfo],
    metric: str,
    mode: Literal["min", "max"],
    data: str | None = None,
) -> list[CheckpointInfo]:
    """List the checkpoints that were evaluated with `metric`, best first.

    Values of other samples than `data` (by default those of the newest one) do not compare.
    """
    evaluated = [checkpoint for checkpoint in checkpoints if metric in checkpoint.metrics]
    if data is None and evaluated:
        data = evaluated[-1].data
    same = {data, None} if data is not None else {saved.data for saved in evaluated}
    by_step = {checkpoint.step: checkpoint for checkpoint in evaluated if checkpoint.data in same}
    values = {step: saved.metrics[metric] for step, saved in by_step.items()}
    return [by_step[step] for step in best_steps(values, mode)]


def best_steps(values: Mapping[int, float], mode: Literal["min", "max"]) -> list[int]:
    """List steps by their value, best first, of equal ones the earlier; only finite values."""
    sign = 1 if mode == "min" else -1
    known = [(sign * value, step) for step, value in values.items() if math.isfinite(value)]
    return [step for _, step in sorted(known)]


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints of a run are kept.

    Attributes:
        keep_last: how many of the newest.
        keep_best: how many of the best.
        metric: decides which are the best; None keeps no best ones.
        mode: whether less or more of it is better.
        keep_every: the first checkpoint at or after each multiple of so many steps.
        may_roll_back: the run may roll back from the newest and delete it, so the previous best
            is kept too.
    """

    keep_last: int
    keep_best: int
    metric: str | None
    mode: Literal["min", "max"]
    keep_every: float | None = None
    may_roll_back: bool = False


def retention_reasons(
    checkpoints: list[CheckpointInfo], policy: RetentionPolicy
) -> dict[Path, list[str]]:
    """Return why each of the checkpoints, oldest first, is kept.

    The reasons are "best", "last", "milestone", "cycle" (its end was saved), "incident", and "best
    before": the best of those before the newest, because a rollback may delete the newest.
    """
    found: dict[Path, list[str]] = {}
    if policy.metric is not None:
        best = best_first(checkpoints, policy.metric, policy.mode)[: policy.keep_best]
        for rank, checkpoint in enumerate(best, 1):
            found.setdefault(checkpoint.path, []).append("best" if rank == 1 else f"best {rank}")
        if policy.may_roll_back:
            before = best_first(checkpoints[:-1], policy.metric, policy.mode)
            for checkpoint in before[: policy.keep_best]:
                found.setdefault(checkpoint.path, ["best before"])
    for rank, checkpoint in enumerate(reversed(checkpoints[-policy.keep_last :]), 1):
        found.setdefault(checkpoint.path, []).append("last" if rank == 1 else f"last {rank}")
    if policy.keep_every is not None:
        periods = {0}
        for checkpoint in checkpoints:  # never deleted, so what was deleted later changes nothing
            if (count := count_periods(checkpoint.step, policy.keep_every)) not in periods:
                periods.add(count)
                found.setdefault(checkpoint.path, []).append("milestone")
    needed = referenced_checkpoints(checkpoints[0].path.parent) if checkpoints else set()
    for checkpoint in ends_of_cycles(checkpoints):
        found.setdefault(checkpoint.path, []).append(f"cycle {checkpoint.cycle}")
    for checkpoint in checkpoints:
        if checkpoint.path in needed:
            found.setdefault(checkpoint.path, []).append("incident")
    return found


def ends_of_cycles(checkpoints: Iterable[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return the first checkpoint of each cycle that ended, of checkpoints that are oldest first.

    Steps after it that are skipped change nothing, so a later checkpoint can be of the same end.
    """
    found: dict[int, CheckpointInfo] = {}
    for checkpoint in checkpoints:
        if checkpoint.cycle is not None:
            found.setdefault(checkpoint.cycle, checkpoint)
    return list(found.values())


def prune(folder: Path, policy: RetentionPolicy) -> list[Path]:
    """Delete the checkpoints that are not kept; return them.

    Those that an incident needs are kept, and corrupted ones are left alone.
    """
    checkpoints = scan_checkpoints(folder, cached=True).good
    kept = retention_reasons(checkpoints, policy)
    deleted = [checkpoint.path for checkpoint in checkpoints if checkpoint.path not in kept]
    delete(deleted)
    return deleted


def delete(checkpoints: Iterable[Path]) -> None:
    """Delete checkpoints; each loses its name first, so that no incomplete one has it."""
    for path in checkpoints:
        hidden = temp_name(path, "del")
        shutil.rmtree(hidden, ignore_errors=True)
        with suppress(FileNotFoundError):  # another process deleted it
            path.rename(hidden)
            shutil.rmtree(hidden)


def explain_retention(
    run: Path,
    monitor: tuple[str, Literal["min", "max"]] | None,
    checkpoints: list[CheckpointInfo],
) -> dict[Path, list[str]]:
    """Return why each checkpoint of a run is kept, by the options in its plan.json.

    Raises:
        RunError: the plan cannot be read.
    """
    plan = read_json(run / "plan.json", PLAN)
    metric, mode = monitor or (None, "min")
    keep_every = plan.get("checkpoint.keep_every")
    try:
        steps = keep_every and parse_duration(keep_every).steps(plan.get("steps_per_epoch"))
    except (ValueError, OverflowError, ConfigError) as error:
        raise RunError(f"{run / 'plan.json'} cannot be read: {error}.") from error
    policy = RetentionPolicy(
        keep_last=plan.get("checkpoint.keep_last", 1),
        keep_best=plan.get("checkpoint.keep_best", 1),
        metric=metric,
        mode=mode,
        keep_every=steps,
        may_roll_back=plan.get("on_spike") == "rollback",
    )
    return retention_reasons(checkpoints, policy)
