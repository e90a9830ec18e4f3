"""Read state.json: everything in a checkpoint that is not a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surestep.engine.value import Value
from surestep.record.checkpoint.errors import checkpoint_error
from surestep.record.checkpoint.manifest import RECORD, Manifest, check_sizes, read_manifest
from surestep.record.io import parse_json, read_regular
from surestep.record.schemas import parse_state


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint on disk: its step, the metrics measured at that step, its folder.

    Attributes:
        step: global batches consumed.
        metrics: measured at this step; empty if it was not evaluated.
        path: the folder.
        evaluated: whether the metrics are of the weights or of their average.
        epoch: epochs completed.
        position: samples consumed in the current epoch.
        cycle: the cycle of the schedule that ended there, from 1.
        best_step: the best step until then.
    """

    step: int
    metrics: dict[str, Value]
    path: Path
    evaluated: Literal["weights", "average"] = "weights"
    epoch: int = 0
    position: int = 0
    cycle: int | None = None
    best_step: int | None = None

    @property
    def has_average(self) -> bool:
        """Whether it has averaged weights."""
        return "average" in read_manifest(self.path).tensors


def read_record(path: Path, manifest: Manifest | None = None) -> dict[str, Any]:
    """Read the state.json of a checkpoint, and its manifest if that is not given.

    Raises:
        CorruptCheckpointError: a file is missing or has another size, or a value is wrong.
        CheckpointError: of another format, or not readable.
    """
    manifest = manifest or read_manifest(path)
    check_sizes(path, manifest)
    try:
        data = read_regular(path / RECORD)
    except (OSError, ValueError) as error:
        raise checkpoint_error(path, RECORD, error) from error
    return parse_state_json(path, data, manifest.step)


def parse_state_json(path: Path, data: bytes, step: int) -> dict[str, Any]:
    """Return the content of a state.json.

    Raises:
        CorruptCheckpointError: a value is wrong, or it is of another step.
    """
    try:
        record = parse_state(parse_json(data))
    except ValueError as error:
        raise checkpoint_error(path, RECORD, error) from error
    if (found := record["progress"]["step"]) != step:
        raise checkpoint_error(path, RECORD, f"it is of step {found}, not {step}")
    return record


def read_info(path: Path) -> CheckpointInfo:
    """Read step and metrics of a checkpoint; its tensors are not read.

    Raises:
        CheckpointError: as of `read_record`.
    """
    return info_from_record(path, read_record(path))


def info_from_record(path: Path, record: Mapping[str, Any]) -> CheckpointInfo:
    """Return step and metrics from the content of a state.json."""
    best, progress = record["best"], record["progress"]
    return CheckpointInfo(
        step=progress["step"],
        metrics=best["latest"] if best["latest_step"] == progress["step"] else {},
        path=path,
        evaluated=best["measured"],
        epoch=progress["epoch"],
        position=progress["position"],
        cycle=record["cycle"],
        best_step=best["best_step"],
    )
