"""Files of one folder: written, then synced, then read back from the disk.

Each is opened once for all three. Training pays for the calls of the thread that writes: the two
take turns in Python, and each call hands the turn over.
"""

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from surestep.record.checkpoint.faults import fault
from surestep.record.checkpoint.tensors import File, write_into
from surestep.record.files import sync

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PIECE = 2**24  # bytes: what is read at once


class Written:
    """Files that are being written into a folder; to be used in a `with`, which closes them.

    Attributes:
        files: what each must be, by its name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, File] = {}
        self._open: dict[str, int] = {}
        self._parts: dict[str, Sequence[Any]] = {}

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def write(self, name: str, parts: Sequence[Any]) -> None:
        """Write what lies in pieces of memory as a file, which is not there yet.

        `check` looks at that memory again.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        self._open[name] = os.open(f"{self.folder}/{name}", _NEW, 0o666)
        self.files[name] = write_into(self._open[name], parts)
        self._parts[name] = parts

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
                is_same = _holds(descriptor, self._parts[name])
            except OSError as error:
                raise fault(self.folder, name, error) from error
            if not is_same:
                raise fault(self.folder, name, "it has other bytes than were written")


def _holds(descriptor: int, parts: Sequence[Any]) -> bool:
    """Say whether an open file, read from the disk, is what lies in pieces of memory.

    Comparing takes a tenth of what another hash would, and numpy lets training run meanwhile.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    left = deque(np.frombuffer(part, np.uint8) for part in parts if memoryview(part).nbytes)
    at, end = 0, sum(map(len, left))
    if os.fstat(descriptor).st_size != end:
        return False
    while left and (piece := os.pread(descriptor, min(end - at, _PIECE), at)):
        at += len(piece)
        read = np.frombuffer(piece, np.uint8)
        while len(read):
            both = min(len(read), len(left[0]))
            if not np.array_equal(read[:both], left[0][:both]):
                return False
            read, left[0] = read[both:], left[0][both:]
            if not len(left[0]):
                left.popleft()
    return not left
