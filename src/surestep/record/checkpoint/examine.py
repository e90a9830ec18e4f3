"""Look at a checkpoint without trusting it: what it says of itself, and whether it is whole."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.listing import Saved, list_checkpoints, read_record, saved
from surestep.record.checkpoint.manifest import MANIFEST, verify


@dataclass(frozen=True)
class Examined:
    """A checkpoint as it was found.

    Attributes:
        path: its folder.
        bytes: the size of its files on the disk.
        written: when its manifest was written, in seconds since 1970; None where there is none.
        saved: step and metrics, where they can be read.
        epoch: epochs that were done, where that can be read.
        position: samples of the next epoch that were done.
        damage: what is wrong with it, and in which file.
        verified: every byte is what was written; None where they were not looked at.
    """

    path: Path
    bytes: int
    written: float | None
    saved: Saved | None = None
    epoch: int | None = None
    position: int | None = None
    damage: str | None = None
    verified: bool | None = None


def examine_all(folder: Path, *, every_byte: bool) -> list[Examined]:
    """Look at the checkpoints of a folder, oldest first; see `examine`."""
    return list(_there(list_checkpoints(folder), every_byte=every_byte))


def _there(paths: list[Path], *, every_byte: bool) -> Iterator[Examined]:
    for path in paths:
        found = examine(path, every_byte=every_byte)
        if found is not None:
            yield found


def examine(path: Path, *, every_byte: bool) -> Examined | None:
    """Look at a checkpoint; None where it was deleted meanwhile, by a run that goes on.

    Args:
        path: its folder.
        every_byte: compare each with what was written; otherwise the sizes of its files, its
            manifest and its record are looked at.
    """
    before = _identity(path)
    size, written = size_on_disk(path), _written(path)
    known: tuple[Saved, int, int] | None = None
    damage = None
    try:
        if every_byte:
            verify(path)
        known = _said(path)
    except CheckpointError as error:
        if not path.is_dir():
            return None
        if _identity(path) != before:  # another was published under its name
            return examine(path, every_byte=every_byte)
        damage = str(error).removeprefix(f"{path} ")
        with suppress(CheckpointError):  # what a damaged one says of itself may still be read
            known = _said(path)
    said, epoch, position = known or (None, None, None)
    verified = False if damage is not None else True if every_byte else None
    return Examined(path, size, written, said, epoch, position, damage, verified)


def _said(path: Path) -> tuple[Saved, int, int]:
    found, place = saved(path), read_record(path)["place"]
    try:
        return found, int(place["epoch"]), int(place["position"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{path} is damaged: state.json: {error!r}.") from error


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
