"""The checkpoints of a folder: which there are, of which step, measured how."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surestep.base.errors import CheckpointError
from surestep.engine.value import Value
from surestep.record.checkpoint.errors import checkpoint_error
from surestep.record.checkpoint.manifest import RECORD, Manifest, check_sizes, read_manifest
from surestep.record.checkpoint.state_schema import as_record, check_numbers
from surestep.record.io import parse_json, read_regular

_NAME = re.compile(r"step-([0-9]{8,})")


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint on disk: its step, the metrics measured at that very step, its folder.

    Attributes:
        measured: whose metrics they are: the weights', or their average's.
        cycle: the cycle of the schedule that ended there, from 1, where those are saved.
        best_step: the step that was the best until then.
    """

    step: int
    metrics: dict[str, Value]
    path: Path
    evaluated: Literal["weights", "average"] = "weights"
    cycle: int | None = None
    best_step: int | None = None

    @property
    def has_average(self) -> bool:
        """Whether it holds averaged weights beside the others."""
        return "average" in read_manifest(self.path).tensors


def list_checkpoints(folder: Path) -> list[Path]:
    """List the published checkpoints, oldest first, by step; links are none.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            found = [(int(m[1]), folder / each.name) for each in entries if (m := _match(each))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be listed: {error.strerror}.") from error
    return [path for _, path in sorted(found)]


def step_of(path: Path) -> int:
    """Return the step of a published checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def is_checkpoint_dir(path: Path) -> bool:
    """Say whether a folder is called as a published checkpoint is."""
    return _NAME.fullmatch(path.name) is not None and path.is_dir()


def _match(entry: os.DirEntry[str]) -> re.Match[str] | None:
    return _NAME.fullmatch(entry.name) if entry.is_dir(follow_symlinks=False) else None


def read_record(path: Path, manifest: Manifest | None = None) -> dict[str, Any]:
    """Read what a checkpoint holds besides tensors, and its manifest where that was not yet.

    Raises:
        DamagedError: not what was written.
        CheckpointError: kept from us, or of another surestep's format.
    """
    manifest = manifest or read_manifest(path)
    check_sizes(path, manifest)
    try:
        data = read_regular(path / RECORD)
    except (OSError, ValueError) as error:
        raise checkpoint_error(path, RECORD, error) from error
    return parse_state_json(path, data, manifest.step)


def parse_state_json(path: Path, data: bytes, step: int) -> dict[str, Any]:
    """Return the record that these bytes of a checkpoint are.

    Raises:
        DamagedError: they are none, or one of another step.
    """
    try:
        record = as_record(parse_json(data))
    except ValueError as error:
        raise checkpoint_error(path, RECORD, error) from error
    if record["progress"]["step"] != step:
        raise checkpoint_error(
            path, RECORD, f"it is of step {record['progress']['step']}, not {step}"
        )
    try:
        check_numbers(record)
    except ValueError as error:
        raise checkpoint_error(path, RECORD, error) from error
    return record


def read_info(path: Path) -> CheckpointInfo:
    """Return step and metrics of a checkpoint.

    Raises:
        DamagedError: not what was written; its tensors are not looked at.
        CheckpointError: kept from us, or of another surestep's format.
    """
    return info_from_record(path, read_record(path))


def info_from_record(path: Path, record: Mapping[str, Any]) -> CheckpointInfo:
    """Return step and metrics of a checkpoint whose record was read."""
    standing, step = record["best"], record["progress"]["step"]
    return CheckpointInfo(
        step,
        standing["latest"] if standing["latest_step"] == step else {},
        path,
        standing["measured"],
        record["cycle"],
        standing["best_step"],
    )
