"""Which files of a run folder are records: what is copied to a mirror beside checkpoints."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from surestep.mirror.link import FILE as LINK
from surestep.mirror.store import is_plain
from surestep.record.lock import LOCK

CHECKPOINTS = "checkpoints"
EVENTS = "events.jsonl"
_NOT_RECORDS = frozenset({CHECKPOINTS, LOCK, LINK})
# What surestep writes into a run folder; callbacks and users may add other files.
_OF_RUN = re.compile(
    r"(config|plan|environment|status|signature|ds_config|skipped|data_findings|predictions)\.json"
    r"|out-of-memory-[^/]+\.(json|pickle)"
    r"|events(-damaged-[0-9]+)?\.jsonl"
    r"|(checkpoints/step-|incidents/step-)[0-9]+/.+|(tensorboard|trackers|profile)/.+"
)

Signature = tuple[int, int, int]  # inode, size, time of the last change


def signature_of(path: Path) -> Signature | None:
    """Return what changes when a file is replaced or grows; None if there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def is_record(name: str) -> bool:
    """Return whether a file in a run folder or a mirror is a record, which is copied, by its name.

    Every file is one that is visible and not in a checkpoint, because callbacks may write more than
    surestep does. Some disks do not distinguish upper and lower case.
    """
    return is_plain(name) and name.split("/")[0].casefold() not in _NOT_RECORDS


def is_of_run(name: str) -> bool:
    """Return whether a file in a mirror is one that surestep writes, by its name."""
    return is_plain(name) and _OF_RUN.fullmatch(name) is not None


def list_records(folder: Path) -> Iterator[tuple[str, Signature]]:
    """Yield the records of a run folder, with their signatures; links are left out."""
    for path, folders, files in os.walk(folder):
        below = Path(path).relative_to(folder)
        folders[:] = [name for name in folders if is_record((below / name).as_posix())]
        for name in files:
            file, record = Path(path) / name, (below / name).as_posix()
            if not is_record(record) or file.is_symlink() or not file.is_file():
                continue
            if (signature := signature_of(file)) is not None:
                yield record, signature
