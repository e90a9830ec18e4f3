"""Which checkpoints stay: the last n, the best k, and milestones."""

import math
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surestep.base.errors import ConfigError, RunError
from surestep.config.duration import count_periods, parse_duration
from surestep.engine.value import number
from surestep.record.checkpoint.discovery import Looked, remember, scan_checkpoints
from surestep.record.checkpoint.state_json import CheckpointInfo
from surestep.record.incident import referenced_checkpoints
from surestep.record.io import read_json
from surestep.record.run_schemas import PLAN
from surestep.record.temp_files import TAKEN, temp_name


def best_first(
    checkpoints: list[CheckpointInfo], metric: str, mode: Literal["min", "max"]
) -> list[CheckpointInfo]:
    """List the checkpoints that were measured by `metric`, best first.

    Of equals the earlier stands first; a metric that is not a number is no measurement.
    """
    by_step = {each.step: each for each in checkpoints}
    values = {each.step: number(each.metrics.get(metric, math.nan)) for each in checkpoints}
    return [by_step[step] for step in best_steps(values, mode)]


def best_steps(values: Mapping[int, float], mode: Literal["min", "max"]) -> list[int]:
    """List the steps at which something was measured, best first, by the value of each."""
    sign = 1 if mode == "min" else -1
    known = [(sign * value, step) for step, value in values.items() if not math.isnan(value)]
    return [step for _, step in sorted(known)]


def cycle_checkpoints(checkpoints: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """List the checkpoints that were saved at the end of a cycle of the schedule."""
    return [each for each in checkpoints if each.cycle is not None]


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints of a run stay.

    Attributes:
        keep_last: how many of the newest.
        keep_best: how many of the best.
        metric: by which the best are known, if any is.
        mode: whether less of it is better, or more.
        keep_every: so many steps: the first that was saved at or after each multiple stays.
        cycles: those at the end of a cycle of the schedule stay too.
        goes_back: the run may go back from the newest, which is deleted then: so what was the best
            before it stays too.
    """

    keep_last: int
    keep_best: int
    metric: str | None
    mode: Literal["min", "max"]
    keep_every: float | None = None
    cycles: bool = False
    goes_back: bool = False


def milestones(checkpoints: list[CheckpointInfo], keep_every: float) -> list[CheckpointInfo]:
    """List the first checkpoint at or after each multiple of so many steps.

    The first of a stretch is never deleted, so what was deleted after it changes nothing.

    Args:
        checkpoints: oldest first.
        keep_every: steps.
    """
    found: dict[int, CheckpointInfo] = {}
    for each in checkpoints:
        if (count := count_periods(each.step, keep_every)) > 0:
            found.setdefault(count, each)
    return list(found.values())


def retention_reasons(
    checkpoints: list[CheckpointInfo], retention: RetentionPolicy
) -> dict[Path, list[str]]:
    """Return what each that stays is kept as: "best", "last", "milestone", "incident".

    Args:
        checkpoints: oldest first.
        retention: which stay.
    """
    found: dict[Path, list[str]] = {}
    if retention.metric is not None:
        best = best_first(checkpoints, retention.metric, retention.mode)[: retention.keep_best]
        for rank, each in enumerate(best, 1):
            found.setdefault(each.path, []).append("best" if rank == 1 else f"best {rank}")
        if retention.goes_back:
            before = best_first(checkpoints[:-1], retention.metric, retention.mode)
            for each in before[: retention.keep_best]:
                found.setdefault(each.path, ["best before"])
    for rank, each in enumerate(reversed(checkpoints[-retention.keep_last :]), 1):
        found.setdefault(each.path, []).append("last" if rank == 1 else f"last {rank}")
    if retention.keep_every is not None:
        for each in milestones(checkpoints, retention.keep_every):
            found.setdefault(each.path, []).append("milestone")
    for each in cycle_checkpoints(checkpoints) if retention.cycles else []:
        found.setdefault(each.path, []).append(f"cycle {each.cycle}")
    needed = referenced_checkpoints(checkpoints[0].path.parent) if checkpoints else set()
    for each in checkpoints:
        if each.path in needed:
            found.setdefault(each.path, []).append("incident")
    return found


def prune(
    folder: Path,
    retention: RetentionPolicy,
    looked: Looked | None = None,
    written: CheckpointInfo | None = None,
) -> list[Path]:
    """Delete the checkpoints that need not stay; return them.

    Those that an incident needs always stay. One that is damaged counts as none, and stays where
    it is.

    Args:
        folder: of the checkpoints.
        retention: which stay.
        looked: what was found before; see `survey`.
        written: one that this process just wrote, and need not read.
    """
    if looked is not None and written is not None:
        remember(looked, written)
    checkpoints = scan_checkpoints(folder, looked).good
    kept = retention_reasons(checkpoints, retention)
    doomed = [each.path for each in checkpoints if each.path not in kept]
    delete(doomed)
    return doomed


def delete(checkpoints: Iterable[Path]) -> None:
    """Delete checkpoints; a name goes before its files, so that no half of one is under it."""
    for path in checkpoints:
        hidden = temp_name(path, "del")
        try:
            _hide(path, hidden)
        except FileNotFoundError:  # somebody else took it first
            continue
        _delete_files(str(hidden))


def _hide(path: Path, hidden: Path) -> None:
    try:
        path.rename(hidden)
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)


def _delete_files(folder: str) -> None:
    """Delete a folder of files; `rmtree`, which takes thrice the time, where it has folders."""
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        os.rmdir(folder)
    except (IsADirectoryError, PermissionError):  # what unlink says of a folder
        shutil.rmtree(folder)


def explain_retention(
    run: Path,
    monitor: tuple[str, Literal["min", "max"]] | None,
    checkpoints: list[CheckpointInfo],
) -> dict[Path, list[str]]:
    """Return for each checkpoint what it is kept as, such as "best" and "last".

    Raises:
        RunError: the run's plan or status cannot be read.
    """
    decided = read_json(run / "plan.json", PLAN)
    plan = {each["option"]: each["value"] for each in decided}
    metric, mode = monitor or (None, "min")
    try:
        keep_every = _keep_every(plan)
    except (ValueError, OverflowError, ConfigError) as error:
        raise RunError(f"{run / 'plan.json'} cannot be read: {error}.") from error
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
