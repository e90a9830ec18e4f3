"""The checkpoints of a folder: which there are, of which step, measured how."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surestep.base.errors import CheckpointError
from surestep.engine.metrics import Value
from surestep.record.checkpoint.manifest import LARGEST, RECORD, read_manifest, size_of

_KEYS = (
    *("place", "counts", "standing", "plateau", "scaler", "metadata", "aliases", "extra"),
    "optimizers",
)
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk: its step, the metrics measured at that very step, its folder.

    Attributes:
        measured: whose metrics they are: the weights', or their average's.
        cycle: the cycle of the schedule that ended there, from 1, where those are saved.
    """

    step: int
    metrics: dict[str, Value]
    path: Path
    measured: Literal["weights", "average"] = "weights"
    cycle: int | None = None

    @property
    def has_average(self) -> bool:
        """Whether it holds averaged weights beside the others."""
        return "average" in read_manifest(self.path).tensors


def list_checkpoints(folder: Path) -> list[Path]:
    """List the published checkpoints, oldest first, by step."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _match(path))]
    return [path for _, path in sorted(found)]


def step_of(path: Path) -> int:
    """Return the step of a published checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def _match(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name) if path.is_dir() else None


def read_record(path: Path) -> dict[str, Any]:
    """Read what a checkpoint holds besides tensors.

    Raises:
        CheckpointError: unreadable, not whole, or of another surestep's format.
    """
    expected = read_manifest(path).files[RECORD].bytes
    try:
        if not size_of(path / RECORD) == expected <= LARGEST:
            raise ValueError(f"it does not have {expected:,} bytes")
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
        lacks = [key for key in _KEYS if not isinstance(record.get(key), dict)]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {RECORD}: {error!r}.") from error
    if lacks:
        raise CheckpointError(f"{path} cannot be read: {RECORD} lacks {', '.join(lacks)}.")
    assert isinstance(record, dict)
    return record


def saved(path: Path) -> Saved:
    """Return step and metrics of a checkpoint.

    Raises:
        CheckpointError: unreadable.
    """
    record = read_record(path)
    try:
        standing, step = record["standing"], int(record["place"]["step"])
        latest = values_of(standing["latest"])
        measured: Literal["weights", "average"] = (
            "average" if standing.get("measured") == "average" else "weights"
        )
        metrics = latest if standing["latest_step"] == step else {}
        return Saved(step, metrics, path, measured, record.get("cycle"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: state.json: {error!r}.") from error


def values_of(latest: Mapping[str, Any]) -> dict[str, Value]:
    """Return metrics as they were measured: JSON has words for what is not finite."""
    return {name: _value(value) for name, value in latest.items()}


def _value(value: Any) -> Value:
    return [_value(each) for each in value] if isinstance(value, list) else float(value)
