"""A lock for the files of a study: threads and processes wait for it, and a kill releases it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from surestep.base.posix import fcntl

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_in_this_process: dict[Path, Lock] = {}  # a lock of `lockf` does not keep out other threads


class FileLock:
    """A lock on a file that exists only for this.

    The kernel releases the lock of a killed process, so no one waits for a timeout.

    Attributes:
        is_supported: whether the file system has locks, once the lock was acquired; without them
            only the threads of this process are kept out.
    """

    is_supported = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = _in_this_process.setdefault(path.resolve(), Lock())
        self._file = -1

    def acquire(self) -> bool:
        """Wait for the lock.

        Raises:
            OSError: the file cannot be opened for writing.
        """
        self._lock.acquire()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o666)
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                self.is_supported = False
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
