"""Find the runs in a folder, and summarize each in one row."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from surestep.base.errors import RunError, SurestepError
from surestep.record.checkpoint.discovery import scan_checkpoints
from surestep.record.checkpoint.retention import best_first
from surestep.record.checkpoint_ref import is_run
from surestep.record.events import last_step
from surestep.record.lock import is_locked
from surestep.record.run import Run

State = Literal["running", "finished", "stopped", "failed", "killed", "unreadable"]


@dataclass(frozen=True)
class RunSummary:
    """A run in one row.

    Attributes:
        path: its folder.
        state: by its status.json. A killed run has no process, and did not write how it ended.
        recipe: the name of its recipe; "" if a script started it.
        step: the last step that is known; None if there is none.
        total_steps: the length of the run, if it is known.
        metric: the metric that decides the best checkpoint; None without evaluations.
        mode: whether "min" or "max" is better.
        best: the value of the metric at the best checkpoint, if there is one.
        best_step: the step of that checkpoint.
        written: when the run was last written to, in seconds since 1970.
        problem: why the state is "unreadable"; else "".
    """

    path: Path
    state: State
    recipe: str = ""
    step: int | None = None
    total_steps: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] | None = None
    best: float | None = None
    best_step: int | None = None
    written: float | None = None
    problem: str = ""


def list_runs(folder: Path) -> list[RunSummary]:
    """Summarize the runs in a folder and in the folders below it, by path.

    Raises:
        RunError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunError(f"There is no folder {folder}. Pass the folder that the runs are in.")
    return sorted(map(summarize, _find_runs(folder)), key=lambda run: str(run.path))


def _find_runs(folder: Path) -> Iterator[Path]:
    for path, folders, _ in os.walk(folder):
        if is_run(Path(path)):
            folders.clear()
            yield Path(path)


def newest_run(folder: Path) -> Path:
    """Return the run in a folder, or in the folders below it, that was written to last.

    Raises:
        RunError: there is none.
    """
    newest = max(_find_runs(folder), key=lambda path: _written(path) or 0.0, default=None)
    if newest is None:
        raise RunError(f"There is no run in {folder}. Pass the folder of a run.")
    return newest


def _written(path: Path) -> float | None:
    """Return when a run was last written to, in seconds since 1970."""
    times = []
    for name in ("status.json", "events.jsonl"):
        with suppress(OSError):
            times.append((path / name).stat().st_mtime)
    return max(times, default=None)


def summarize(path: Path) -> RunSummary:
    """Summarize a run. A damaged one has the state "unreadable"."""
    written = _written(path)
    try:
        run = Run(path)
        config, status = run.config, run.status
        found = scan_checkpoints(run.checkpoints).good
        ranked = best_first(found, *run.monitor) if run.monitor else []
    except SurestepError as error:
        return RunSummary(path, "unreadable", written=written, problem=str(error))
    steps = [checkpoint.step for checkpoint in found]
    steps += [step for step in (status.get("step"), last_step(path / "events.jsonl")) if step]
    metric, mode = run.monitor or (None, None)
    best = ranked[0].metrics[metric] if ranked and metric else math.nan
    state: State = status["status"]
    return RunSummary(
        path,
        "killed" if state == "running" and not is_locked(path) else state,
        recipe=str(config["recipe"].get("name", "")),
        step=max(steps, default=None),
        total_steps=config.get("decided", {}).get("total_steps"),
        metric=metric,
        mode=mode,
        best=None if math.isnan(best) else best,
        best_step=ranked[0].step if ranked else None,
        written=written,
    )
