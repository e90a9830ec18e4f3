"""An incident: a folder from which a step that was not finite can be replayed.

`RUN/incidents/step-XXXXXXXX/` has `incident.json` (the config, the progress, the findings, the
checkpoint before the step) and `batch.safetensors`. Retention keeps that checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from surestep.base.errors import RunError
from surestep.base.files import fsync, publish, temp_name
from surestep.base.version import VERSION
from surestep.record.io import (
    COPY_HINT,
    dumps,
    explain_write_errors,
    read_json,
    read_regular,
    unreadable_error,
)
from surestep.record.safetensors_writer import write_tensors
from surestep.record.schemas import INCIDENT, INCIDENT_FORMAT

if TYPE_CHECKING:
    from torch import Tensor

FOLDER, RECORD, BATCH = "incidents", "incident.json", "batch.safetensors"


@dataclass(frozen=True)
class Incident:
    """An incident that was read; the record is the content of incident.json."""

    path: Path
    record: Mapping[str, Any]

    @property
    def run(self) -> Path:
        """The folder of its run."""
        return self.path.resolve().parent.parent

    @property
    def step(self) -> int:
        """The step that was not finite, from 1."""
        return int(self.record["step"])

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the state before it."""
        return self.run / "checkpoints" / str(self.record["checkpoint"])

    def tensors(self) -> dict[str, Tensor]:
        """Read the tensors of the batch, whose hash must be that of the record."""
        from safetensors.torch import load

        path = self.path / BATCH
        try:
            data = read_regular(path, most=self.record["bytes"])
            if sha256(data).hexdigest() != self.record["sha256"]:
                raise RunError(
                    f"{path} is damaged: it has other bytes than were written. {COPY_HINT}"
                )
            return dict(load(data))
        except (OSError, ValueError) as error:
            raise unreadable_error(path, error) from error
        except (SafetensorError, MemoryError) as error:
            text = str(error) or "it does not fit in memory"
            raise unreadable_error(path, ValueError(text)) from error


def folder_of(run: Path, step: int) -> Path:
    """Return the folder of the incident at a step of a run."""
    return run / FOLDER / f"step-{step:08d}"


def write_incident(
    run: Path, step: int, record: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """Write an incident, replacing one of the same step; return its folder.

    Args:
        run: the run's folder.
        step: the step that was not finite, from 1.
        record: the content of incident.json, without its format and the hash of the batch.
        tensors: of the batch, on the host and contiguous.

    Raises:
        RunError: the disk is full or not writable.
    """
    final = folder_of(run, step)
    temporary = temp_name(final, "tmp")
    about = {"format": INCIDENT_FORMAT, "surestep": VERSION, "step": step}
    with explain_write_errors(final):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            written = write_tensors(temporary / BATCH, tensors)
            text = dumps({**about, **record, **written._asdict()}, indent=1)
            (temporary / RECORD).write_text(f"{text}\n", encoding="utf-8")
            for path in (temporary / BATCH, temporary / RECORD, temporary):
                fsync(path)
            publish(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return final


def read_incident(path: Path) -> Incident:
    """Read an incident.

    Raises:
        RunError: it is not an incident, or cannot be read.
    """
    if not (path / RECORD).is_file():
        existing = [str(incident.path) for incident in incidents_of(path)]
        hint = (
            f"Its incidents: {', '.join(existing)}."
            if existing
            else "Incidents are in RUN/incidents."
        )
        raise RunError(f"{path} is not an incident: it has no {RECORD}. {hint}")
    record: dict[str, Any] = read_json(path / RECORD, INCIDENT)
    if Path(record["checkpoint"]).name != record["checkpoint"]:
        raise RunError(f"{path / RECORD} names a checkpoint that is not in its run.")
    return Incident(path, record)


def incidents_of(run: Path) -> Iterator[Incident]:
    """Yield the readable incidents of a run, by step."""
    folder = run / FOLDER
    for path in sorted(folder.glob("step-*")) if folder.is_dir() else ():
        if (path / RECORD).is_file():
            with suppress(RunError):
                yield read_incident(path)


def referenced_checkpoints(checkpoints: Path) -> set[Path]:
    """Return the checkpoints that incidents of their run need."""
    return {checkpoints / incident.checkpoint.name for incident in incidents_of(checkpoints.parent)}
