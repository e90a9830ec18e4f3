"""Find the checkpoints of a folder, which of them are valid, and what is wrong with the others."""

import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from surestep.base.errors import CheckpointError, CorruptCheckpointError, RunError
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    CheckpointVanishedError,
    iter_errors,
    read_manifest,
)
from surestep.record.checkpoint.reader import (
    CheckpointInfo,
    CheckpointReader,
    check_readable,
    check_record,
    info_from_record,
    open_checkpoint,
    read_info,
    read_record,
)
from surestep.record.events import read_events

TRIES = 5  # a checkpoint vanishes when a newer one was published
_DAMAGED = "damaged-"  # prefix of a corrupted checkpoint that was renamed
_NAME = re.compile(r"step-([0-9]{8,})")
_PUT_BACK = "Put a copy of one back, or start again in another folder with --run (run= in Python)."


def list_checkpoints(folder: Path) -> list[Path]:
    """List the published checkpoints, oldest first, by step; links are ignored."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be listed: {error.strerror}.") from error
    return sorted((folder / name for name in names if _NAME.fullmatch(name)), key=step_of)


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a published checkpoint."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step of a published checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def has_checkpoint_name(name: str) -> bool:
    """Return whether a name is that of a published checkpoint."""
    return _NAME.fullmatch(name) is not None


def is_checkpoint_dir(path: Path) -> bool:
    """Return whether a folder has the name of a published checkpoint."""
    return has_checkpoint_name(path.name) and path.is_dir()


class CorruptCheckpoint(NamedTuple):
    """A corrupted checkpoint, and what is wrong with it."""

    path: Path
    reason: str

    @property
    def step(self) -> int:
        """The step by its name, since its content may be wrong."""
        return step_of(self.path)


class NewestValid(NamedTuple):
    """The newest valid checkpoint, and the newer ones that are corrupted, newest first.

    `opened` is None if the folder has no checkpoint.
    """

    opened: CheckpointReader | None
    passed_over: tuple[CorruptCheckpoint, ...] = ()


class CheckpointScan(NamedTuple):
    """The checkpoints of a folder by their state.json, oldest first; tensors are not read."""

    good: list[CheckpointInfo]
    damaged: list[CorruptCheckpoint]

    def newer_damaged(self) -> list[CorruptCheckpoint]:
        """Return the damaged ones that are newer than all good ones."""
        newest = self.good[-1].step if self.good else -1
        return [found for found in self.damaged if found.step > newest]


def find_newest_valid(
    folder: Path, *, accept: Callable[[CheckpointReader], object] | None = None
) -> NewestValid:
    """Verify the checkpoints of a folder, newest first, until one is valid.

    Args:
        folder: of the checkpoints.
        accept: raises CorruptCheckpointError for a valid one that cannot be of this run.

    Raises:
        CheckpointError: there are some, and each is corrupted; or one cannot be read for a reason
            that does not make an older one the right choice.
    """
    for _ in range(TRIES):
        passed_over: list[CorruptCheckpoint] = []
        for path in reversed(list_checkpoints(folder)):
            try:
                found = open_checkpoint(path)
                if accept is not None:
                    accept(found)
                return NewestValid(found, tuple(passed_over))
            except CheckpointVanishedError:
                break
            except CorruptCheckpointError as error:
                passed_over.append(CorruptCheckpoint(path, str(error)))
        else:
            if passed_over:
                raise CheckpointError(no_valid_checkpoint_message(folder, passed_over))
            return NewestValid(None)
    raise CheckpointVanishedError(f"{folder} loses its checkpoints faster than they can be read.")


def scan_checkpoints(folder: Path, *, cached: bool = False) -> CheckpointScan:
    """Read the state.json of all checkpoints.

    The folder is listed again if one is deleted meanwhile, since a newer one may have replaced it.
    In a folder that keeps changing, what is deleted is left out. If `cached`, a published
    checkpoint is read only once in this process.

    Raises:
        CheckpointError: a checkpoint cannot be read, or has a newer format.
    """
    for _ in range(TRIES):
        found, has_vanished = CheckpointScan([], []), False
        for path in list_checkpoints(folder):
            try:
                info = _cached_info(path, _identity(path)) if cached else read_info(path)
                found.good.append(info)
            except CheckpointVanishedError:
                has_vanished = True
            except CorruptCheckpointError as error:
                found.damaged.append(CorruptCheckpoint(path, str(error)))
        if not has_vanished:
            break
    return found


@lru_cache(maxsize=1024)
def _cached_info(path: Path, identity: tuple[int, ...] | None) -> CheckpointInfo:
    return read_info(path)


def quarantine(path: Path) -> Path:
    """Rename a corrupted checkpoint, so that it is not listed; return its new path."""
    renamed = path.with_name(f"{_DAMAGED}{path.name}")
    shutil.rmtree(renamed, ignore_errors=True)
    path.rename(renamed)
    return renamed


def has_published(run: Path) -> bool:
    """Return whether the run has published a checkpoint since it last began from scratch."""
    events, has = run / "events.jsonl", False
    for event in read_events(events) if events.exists() else ():
        has = event["event"] == "checkpoint" or (has and event["event"] != "restart")
    return has


def no_checkpoint_message(run: Path) -> str:
    """Return a message that a run has no checkpoint yet, or no longer."""
    with suppress(RunError):
        if has_published(run):
            return f"{run} had checkpoints, and has none now. {_PUT_BACK}"
    return f"{run} has no checkpoint yet."


def no_valid_checkpoint_message(folder: Path, passed_over: list[CorruptCheckpoint]) -> str:
    """Return a message that a folder has no checkpoint, or no valid one, and what to do."""
    if not passed_over:
        return no_checkpoint_message(folder.parent)
    reasons = "\n".join(f"  {found.reason}" for found in passed_over)
    return f"{folder} has no valid checkpoint:\n{reasons}\n{_PUT_BACK}"


@dataclass(frozen=True)
class InspectionResult:
    """A checkpoint as it is on disk, whatever its state.

    Attributes:
        path: its folder.
        bytes: the size of its files.
        written: when its manifest was written, in seconds since 1970, if it has one.
        saved: step and metrics, if they can be read.
        problems: what is wrong with it, each beginning with the file.
        verified: whether every byte is what was written; None if they were not read.
    """

    path: Path
    bytes: int
    written: float | None
    saved: CheckpointInfo | None
    problems: tuple[str, ...]
    verified: bool | None

    @property
    def good(self) -> bool:
        """Whether no problem is known."""
        return not self.problems

    @property
    def step(self) -> int | None:
        """The step by the folder's name, if it has one."""
        match = _NAME.fullmatch(self.path.name.removeprefix(_DAMAGED))
        return int(match[1]) if match else None


def list_all_folders(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, oldest first, and corrupted ones that were renamed."""
    renamed = folder.glob(f"{_DAMAGED}*")
    found = [path for path in renamed if path.is_dir() and not path.is_symlink()]
    names = {path: path.name.removeprefix(_DAMAGED) for path in [*list_checkpoints(folder), *found]}
    return sorted(names, key=lambda path: (len(names[path]), names[path], path.name))


def examine_all(folder: Path, *, every_byte: bool) -> list[InspectionResult]:
    """Inspect what `list_all_folders` lists, as `examine` does."""
    found = (examine(path, every_byte=every_byte) for path in list_all_folders(folder))
    return [result for result in found if result is not None]


def examine(path: Path, *, every_byte: bool) -> InspectionResult | None:
    """Inspect a checkpoint; return None if a running run deletes it meanwhile.

    Without `every_byte`, only sizes, manifest and state.json are read.
    """
    before = _identity(path)
    size, written = size_on_disk(path), None
    with suppress(OSError):
        written = (path / MANIFEST).lstat().st_mtime
    saved: CheckpointInfo | None = None
    problems: list[CheckpointError] = []
    try:
        problems += iter_errors(path) if every_byte else []
        saved = info_from_record(path, record := read_record(path))
        if every_byte and not problems:
            check_record(path, record)
            check_readable(path, read_manifest(path))
    except CheckpointError as error:
        problems = problems or [error]
    if not path.is_dir():
        return None
    if problems and _identity(path) != before:  # replaced by a new one of that step
        return examine(path, every_byte=every_byte)
    damaged = any(isinstance(error, CorruptCheckpointError) for error in problems)
    verified = False if damaged else True if every_byte and not problems else None
    texts = tuple(
        str(error).removeprefix(f"{path} ").removeprefix("is damaged: ") for error in problems
    )
    return InspectionResult(path, size, written, saved, texts, verified)


def size_on_disk(path: Path) -> int:
    """Return the bytes of the regular files in a folder; links are not followed."""
    total = 0
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what changes if a checkpoint is replaced by another one of its step."""
    try:
        found = (path / MANIFEST).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
