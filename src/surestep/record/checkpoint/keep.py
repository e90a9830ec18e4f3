"""Which checkpoints stay: the last n and the best k."""

import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from surestep.engine.metrics import number
from surestep.record.checkpoint.good import survey
from surestep.record.checkpoint.listing import Saved
from surestep.record.incident import referred
from surestep.record.leftovers import half_done


def best_first(checkpoints: list[Saved], metric: str, mode: Literal["min", "max"]) -> list[Saved]:
    """List the checkpoints that were measured by `metric`, best first.

    Of equals the earlier stands first; a metric that is not a number is no measurement.
    """
    values = [(number(each.metrics.get(metric, math.nan)), each) for each in checkpoints]
    known = [(value, each) for value, each in values if not math.isnan(value)]
    sign = 1 if mode == "min" else -1
    return [each for _, each in sorted(known, key=lambda one: (sign * one[0], one[1].step))]


def cycle_checkpoints(checkpoints: list[Saved]) -> list[Saved]:
    """List the checkpoints that were saved at the end of a cycle of the schedule."""
    return [each for each in checkpoints if each.cycle is not None]


def reasons(
    checkpoints: list[Saved],
    *,
    keep_last: int,
    keep_best: int,
    metric: str | None,
    mode: Literal["min", "max"],
    cycles: bool = False,
) -> dict[Path, list[str]]:
    """Return what each checkpoint is kept as: "best", "last", "incident"; those that stay only.

    Args:
        checkpoints: oldest first.
        keep_last: how many of the newest stay.
        keep_best: how many of the best stay.
        metric: by which the best are known, if any is.
        mode: whether less of it is better, or more.
        cycles: those at the end of a cycle of the schedule stay too.
    """
    found: dict[Path, list[str]] = {}
    if metric is not None:
        for rank, each in enumerate(best_first(checkpoints, metric, mode)[:keep_best], 1):
            found.setdefault(each.path, []).append("best" if rank == 1 else f"best {rank}")
    for rank, each in enumerate(reversed(checkpoints[-keep_last:]), 1):
        found.setdefault(each.path, []).append("last" if rank == 1 else f"last {rank}")
    for each in cycle_checkpoints(checkpoints) if cycles else []:
        found.setdefault(each.path, []).append(f"cycle {each.cycle}")
    needed = referred(checkpoints[0].path.parent) if checkpoints else set()
    for each in checkpoints:
        if each.path in needed:
            found.setdefault(each.path, []).append("incident")
    return found


def retain(
    folder: Path,
    *,
    keep_last: int,
    keep_best: int,
    metric: str | None,
    mode: Literal["min", "max"],
    cycles: bool = False,
) -> list[Path]:
    """Delete the checkpoints that are neither among the last n nor the best k; return them.

    With `cycles`, those at the end of a cycle of the schedule stay too; those that an incident
    needs always do. One that is damaged counts as none, and stays where it is.

    A name is taken away before its files are, so that no half of one is left under it.
    """
    checkpoints = survey(folder).good
    kept = reasons(
        checkpoints,
        keep_last=keep_last,
        keep_best=keep_best,
        metric=metric,
        mode=mode,
        cycles=cycles,
    )
    doomed = [each.path for each in checkpoints if each.path not in kept]
    delete(doomed)
    return doomed


def delete(checkpoints: Iterable[Path]) -> None:
    """Delete checkpoints; a name goes before its files, so that no half of one is under it."""
    for path in checkpoints:
        hidden = half_done(path, "del")
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        shutil.rmtree(hidden)
