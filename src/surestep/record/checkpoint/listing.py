"""The checkpoints of a folder: which there are, of which step, measured how."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surestep.base.errors import CheckpointError
from surestep.engine.value import Value
from surestep.record.checkpoint.faults import fault
from surestep.record.checkpoint.manifest import RECORD, Manifest, check_sizes, read_manifest
from surestep.record.checkpoint.record import as_record, check_numbers
from surestep.record.files import parse_json, read_plain

_NAME = re.compile(r"step-([0-9]{8,})")


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk: its step, the metrics measured at that very step, its folder.

    Attributes:
        measured: whose metrics they are: the weights', or their average's.
        cycle: the cycle of the schedule that ended there, from 1, where those are saved.
        best_step: the step that was the best until then.
    """

    step: int
    metrics: dict[str, Value]
    path: Path
    measured: Literal["weights", "average"] = "weights"
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


def is_named(path: Path) -> bool:
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
        data = read_plain(path / RECORD)
    except (OSError, ValueError) as error:
        raise fault(path, RECORD, error) from error
    return taken(path, data, manifest.step)


def taken(path: Path, data: bytes, step: int) -> dict[str, Any]:
    """Return the record that these bytes of a checkpoint are.

    Raises:
        DamagedError: they are none, or one of another step.
    """
    try:
        record = as_record(parse_json(data))
    except ValueError as error:
        raise fault(path, RECORD, error) from error
    if record["place"]["step"] != step:
        raise fault(path, RECORD, f"it is of step {record['place']['step']}, not {step}")
    try:
        check_numbers(record)
    except ValueError as error:
        raise fault(path, RECORD, error) from error
    return record


def saved(path: Path) -> Saved:
    """Return step and metrics of a checkpoint.

    Raises:
        DamagedError: not what was written; its tensors are not looked at.
        CheckpointError: kept from us, or of another surestep's format.
    """
    return described(path, read_record(path))


def described(path: Path, record: Mapping[str, Any]) -> Saved:
    """Return step and metrics of a checkpoint whose record was read."""
    standing, step = record["standing"], record["place"]["step"]
    return Saved(
        step,
        standing["latest"] if standing["latest_step"] == step else {},
        path,
        standing["measured"],
        record["cycle"],
        standing["best_step"],
    )
