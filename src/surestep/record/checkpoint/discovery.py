"""Which checkpoints of a folder are good, and which to go on from."""

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from surestep.base.errors import CheckpointError, CorruptCheckpointError, RunError
from surestep.record.checkpoint.errors import CheckpointVanishedError
from surestep.record.checkpoint.manifest import (
    MANIFEST,
)
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.checkpoint.state_json import CheckpointInfo, read_info
from surestep.record.checkpoint.verify import Check
from surestep.record.events import read_events

DAMAGED = "damaged-"  # what the name of a damaged checkpoint that was put aside begins with
TRIES = 5  # each time that one is gone, a newer one was published


class CorruptCheckpoint(NamedTuple):
    """A damaged checkpoint, and what is wrong with it."""

    path: Path
    reason: str

    @property
    def step(self) -> int:
        """The step by its name, since what it says of itself may be wrong."""
        return step_of(self.path)


class NewestValid(NamedTuple):
    """The newest good checkpoint, and the newer ones that are damaged, newest first.

    `opened` is None where the folder has no checkpoint at all.
    """

    opened: CheckpointReader | None
    passed_over: tuple[CorruptCheckpoint, ...] = ()


class CheckpointScan(NamedTuple):
    """The checkpoints of a folder by what they say of themselves, oldest first.

    The bytes of their tensors are not looked at: that takes as long as loading, and loading does.
    """

    good: list[CheckpointInfo]
    damaged: list[CorruptCheckpoint]

    def newer_damaged(self) -> list[CorruptCheckpoint]:
        """Return the damaged ones that are newer than all good ones."""
        newest = self.good[-1].step if self.good else -1
        return [each for each in self.damaged if each.step > newest]


def find_newest_valid(
    folder: Path,
    *,
    check: Check | None = None,
    accept: Callable[[CheckpointReader], object] | None = None,
) -> NewestValid:
    """Verify the checkpoints of a folder, newest first, until one is good.

    Args:
        folder: of the checkpoints.
        check: as for `open_checkpoint`.
        accept: raises a DamagedError for one that is whole and cannot be of this run.

    Raises:
        CheckpointError: there are some, and each is damaged; or one cannot be read for a reason
            that another would not mend.
    """
    for _ in range(TRIES):
        passed_over: list[CorruptCheckpoint] = []
        for path in reversed(list_checkpoints(folder)):
            try:
                found = open_checkpoint(path, check=check)
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


def no_valid_checkpoint_message(folder: Path, passed_over: list[CorruptCheckpoint]) -> str:
    """Say that a folder has no checkpoint, or none that is good, and what to type."""
    if not passed_over:
        return no_checkpoint_message(folder.parent)
    reasons = "\n".join(f"  {each.reason}" for each in passed_over)
    return (
        f"{folder} has no checkpoint that is good:\n{reasons}\nPut a copy of one back, or start "
        "anew in another folder with --run (run= in Python)."
    )


Looked = dict[tuple[str, int, int], CheckpointInfo]  # by name, inode and time of the manifest


def scan_checkpoints(folder: Path, looked: Looked | None = None) -> CheckpointScan:
    """Look at all checkpoints of a folder; one that is deleted meanwhile is left out.

    Args:
        folder: of the checkpoints.
        looked: what was found before, by whoever looks again and again: a checkpoint that has its
            name never changes, and reading a few costs a millisecond of each save.

    Raises:
        CheckpointError: one is kept from us, or of a newer surestep.
    """
    found = CheckpointScan([], [])
    for path in list_checkpoints(folder):
        try:
            found.good.append(read_info(path) if looked is None else _saved_once(path, looked))
        except CheckpointVanishedError:
            continue
        except CorruptCheckpointError as error:
            found.damaged.append(CorruptCheckpoint(path, str(error)))
    return found


def remember(looked: Looked, written: CheckpointInfo) -> None:
    """Note a checkpoint that this process wrote, so that it need not be read."""
    with suppress(OSError):
        looked[_key(written.path)] = written


def _saved_once(path: Path, looked: Looked) -> CheckpointInfo:
    try:
        key = _key(path)
    except OSError:
        return read_info(path)  # which says what is wrong
    if key not in looked:
        looked[key] = read_info(path)
    return looked[key]


def _key(path: Path) -> tuple[str, int, int]:
    manifest = os.stat(f"{path}/{MANIFEST}")
    return path.name, manifest.st_ino, manifest.st_mtime_ns


def quarantine(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it counts as none; return where it lies now."""
    aside = path.with_name(f"{DAMAGED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def has_published(run: Path) -> bool:
    """Say whether the run has ever published a checkpoint.

    Raises:
        RunError: its events cannot be read.
    """
    events = run / "events.jsonl"
    return events.exists() and any(e["event"] == "checkpoint" for e in read_events(events))


def no_checkpoint_message(run: Path) -> str:
    """Say that a run has no checkpoint: not yet, or not any more."""
    try:
        gone = has_published(run)
    except RunError:  # nothing more is known than that there is none
        gone = False
    if not gone:
        return f"{run} has no checkpoint yet."
    return (
        f"{run} had checkpoints, and has none now. Put one back, or start anew in another folder "
        "with --run (run= in Python)."
    )


_NAME = re.compile(r"step-([0-9]{8,})")


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
