"""Look at a checkpoint without trusting it: what it says of itself, and whether it is whole."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from surestep.base.errors import CheckpointError, CorruptCheckpointError
from surestep.record.checkpoint.discovery import DAMAGED, list_checkpoints
from surestep.record.checkpoint.errors import checkpoint_error
from surestep.record.checkpoint.manifest import MANIFEST, RECORD, iter_errors
from surestep.record.checkpoint.state_json import CheckpointInfo, read_info, read_record


@dataclass(frozen=True)
class InspectionResult:
    """A checkpoint as it was found.

    Attributes:
        path: its folder.
        step: of the checkpoint, by the folder's name; None where that tells none.
        bytes: the size of its files on the disk.
        written: when its manifest was written, in seconds since 1970; None where there is none.
        saved: step and metrics, where they can be read.
        epoch: epochs that were done, where that can be read.
        position: samples of the next epoch that were done.
        problems: what is wrong with it, beginning with the file; or why it cannot be read.
        verified: every byte is what was written, or is not; None where they were not read.
    """

    path: Path
    step: int | None
    bytes: int
    written: float | None
    saved: CheckpointInfo | None
    epoch: int | None
    position: int | None
    problems: tuple[str, ...]
    verified: bool | None

    @property
    def good(self) -> bool:
        """Whether nothing is known to be wrong with it."""
        return not self.problems


def examine_all(folder: Path, *, every_byte: bool) -> list[InspectionResult]:
    """Look at the checkpoints of a folder, oldest first, and at damaged ones that were put aside.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    found = (examine(path, every_byte=every_byte) for path in list_all_folders(folder))
    return [each for each in found if each is not None]


def list_all_folders(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, oldest first, and damaged ones that were put aside.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    published = list_checkpoints(folder)
    aside = [path for path in folder.glob(f"{DAMAGED}*") if path.is_dir() and not path.is_symlink()]
    return sorted([*published, *aside], key=lambda path: (_step_by_name(path) or 0, path.name))


def examine(path: Path, *, every_byte: bool) -> InspectionResult | None:
    """Look at a checkpoint; None where it was deleted meanwhile, by a run that goes on.

    Args:
        path: its folder.
        every_byte: compare each with what was written; otherwise the sizes of its files, its
            manifest and its record are looked at.
    """
    before = _identity(path)
    size, written = size_on_disk(path), _written(path)
    known: tuple[CheckpointInfo, int, int] | None = None
    problems: list[CheckpointError] = []
    try:
        problems += iter_errors(path) if every_byte else []
        known = _said(path)
    except CheckpointError as error:
        problems = problems or [error]
    if not path.is_dir():
        return None
    if problems and _identity(path) != before:  # another was published under its name
        return examine(path, every_byte=every_byte)
    damaged = any(isinstance(each, CorruptCheckpointError) for each in problems)
    verified = False if damaged else True if every_byte and not problems else None
    told = tuple(_told(path, each) for each in problems)
    said, epoch, position = known or (None, None, None)
    step = _step_by_name(path)
    return InspectionResult(path, step, size, written, said, epoch, position, told, verified)


def _told(path: Path, error: CheckpointError) -> str:
    return str(error).removeprefix(f"{path} ").removeprefix("is damaged: ")


def _step_by_name(path: Path) -> int | None:
    digits = path.name.removeprefix(DAMAGED).removeprefix("step-")
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None


def _said(path: Path) -> tuple[CheckpointInfo, int, int]:
    found, place = read_info(path), read_record(path)["progress"]
    try:
        return found, int(place["epoch"]), int(place["position"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise checkpoint_error(path, RECORD, repr(error)) from error


def size_on_disk(path: Path) -> int:
    """Return the bytes of the plain files in a folder; links are not followed."""
    total = 0
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _written(path: Path) -> float | None:
    try:
        return (path / MANIFEST).lstat().st_mtime
    except OSError:
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
