"""How far a run is, by its files: its state, its last step and its best metric."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surestep.record.checkpoint.discovery import scan_checkpoints
from surestep.record.checkpoint.retention import best_first
from surestep.record.events import last_step
from surestep.record.lock import is_locked

State = Literal["running", "finished", "stopped", "failed", "killed", "unreadable"]


@dataclass(frozen=True)
class RunProgress:
    """How far a run is; the attributes are those of a `RunSummary`."""

    state: State
    recipe: str
    step: int | None
    total_steps: int | None
    metric: str | None
    mode: Literal["min", "max"] | None
    best: float | None
    best_step: int | None
    micro_batch_size: int | None


def state_of(path: Path, status: Mapping[str, Any]) -> State:
    """Return the state of a run: one that is running by its status and not locked was killed."""
    state: State = status["status"]
    return "killed" if state == "running" and not is_locked(path) else state


def read_progress(path: Path, config: Mapping[str, Any], status: Mapping[str, Any]) -> RunProgress:
    """Read how far a run is.

    Args:
        path: its folder.
        config: the content of its config.json.
        status: that of its status.json.

    Raises:
        CheckpointError: its checkpoints cannot be listed.
    """
    found = scan_checkpoints(path / "checkpoints").good
    monitor = status.get("monitor")
    metric, mode = monitor or (None, None)
    ranked = best_first(found, *monitor) if monitor else []
    steps = [checkpoint.step for checkpoint in found]
    steps += [step for step in (status.get("step"), last_step(path / "events.jsonl")) if step]
    best = ranked[0].metrics[metric] if ranked and metric else math.nan
    return RunProgress(
        state_of(path, status),
        recipe=str(config["recipe"].get("name", "")),
        step=max(steps, default=None),
        total_steps=config.get("decided", {}).get("total_steps"),
        micro_batch_size=status.get("micro_batch_size"),
        metric=metric,
        mode=mode,
        best=None if math.isnan(best) else best,
        best_step=ranked[0].step if ranked else None,
    )
