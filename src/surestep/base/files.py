"""Write files and folders so that a reader never sees half of one.

Temporary files and folders carry host and pid, so that stale ones can be removed.
"""

import errno
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_TEMPORARY = re.compile(r"\.(tmp|del|old)-(.+)-at-(.*)-(\d+)")
_DAY_S = 86400


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; then sync it and give it the name `path`, unless the body raised.

    Raises:
        OSError: it cannot be written, or `path` is a folder, a device or a pipe, which a file would
            replace.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EISDIR if path.is_dir() else errno.EINVAL, "it is not a regular file")
    temporary = temp_name(path, "tmp")
    try:
        temporary.unlink(missing_ok=True)
        yield temporary
        fsync(temporary)
        temporary.replace(path)
        fsync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def fsync(path: Path) -> bool:
    """Sync the bytes of a file or the names in a folder; False if the system syncs no folders."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in _UNSUPPORTED and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return False
        raise
    finally:
        os.close(descriptor)
    return True


def temp_name(path: Path, kind: str) -> Path:
    """Return a name of this process beside `path`, its final path.

    The kind is "tmp" (will become it), "old" (is replaced by it) or "del" (is being deleted).
    """
    return path.with_name(f".{kind}-{path.name}-at-{_host()}-{os.getpid()}")


def publish(temporary: Path, final: Path) -> None:
    """Rename a temporary folder to its final name; an existing one is replaced."""
    old: Path | None = None
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in _NAME_TAKEN:
            raise
        old = temp_name(final, "old")
        final.rename(old)
        try:
            temporary.rename(final)
        except OSError:
            old.rename(final)
            raise
    fsync(final.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def remove_stale(folder: Path, *, locked: bool = False) -> None:
    """Delete what dead processes left in a folder; only the holder of the run folder may.

    Files of living processes stay, and those of other machines for a day; if `locked`, a lock
    proves that all is stale. An "old" checkpoint gets its name back if no newer one has it.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or (not locked and _may_live(path, match[3], int(match[4]))):
            continue
        final = folder / match[2]
        if match[1] == "old" and not final.exists():
            path.rename(final)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _may_live(path: Path, host: str, pid: int) -> bool:
    if host != _host():
        return time.time() - path.lstat().st_mtime < _DAY_S
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@cache  # the call releases the GIL to training, and getting it back can take a millisecond
def _host() -> str:
    return socket.gethostname()
