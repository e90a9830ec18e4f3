"""Files of one folder: written, then synced, then read back from the disk.

Each is opened once for all three. Training pays for the calls of the thread that writes: the two
take turns in Python, and each call hands the turn over.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surestep.record.checkpoint.faults import fault
from surestep.record.checkpoint.tensors import File, write_into
from surestep.record.files import sync

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PIECE = 2**24  # bytes: what is hashed at once


class Written:
    """Files that are being written into a folder; to be used in a `with`, which closes them.

    Attributes:
        files: what each must be, by its name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, File] = {}
        self._open: dict[str, int] = {}

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def write(self, name: str, parts: Sequence[Any]) -> None:
        """Write what lies in pieces of memory as a file, which is not there yet.

        It is on its way to the disk while the next one is hashed.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        self._open[name] = os.open(f"{self.folder}/{name}", _NEW, 0o666)
        self.files[name] = write_into(self._open[name], parts)
        _let_go(self._open[name])

    def sync(self) -> None:
        """Make the bytes of the files, and then their names, survive a power cut.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        for descriptor in self._open.values():
            os.fsync(descriptor)
        sync(self.folder)

    def check(self) -> None:
        """Read the files from the disk, and compare them with what was in memory.

        What the system still holds of them in memory is let go first.

        Raises:
            DamagedError: one has other bytes than were written.
            CheckpointError: kept from us.
        """
        for name, descriptor in self._open.items():
            try:
                sha256 = _sha256(descriptor, self.files[name].bytes)
            except OSError as error:
                raise fault(self.folder, name, error) from error
            if sha256 != self.files[name].sha256:
                raise fault(self.folder, name, "it has other bytes than were written")


def _let_go(descriptor: int) -> None:
    """Ask the system to keep no copy of a file; what is not on the disk yet it begins to write."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _sha256(descriptor: int, size: int) -> str:
    """Return the hash of an open file, read from the disk; of a longer one another."""
    _let_go(descriptor)
    digest, at = hashlib.sha256(), 0
    while at < size and (piece := os.pread(descriptor, min(size + 1 - at, _PIECE), at)):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()
