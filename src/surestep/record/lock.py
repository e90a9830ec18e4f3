"""Lock a run folder for one process, and try what a run needs of its file system.

`lockf`, because forked data workers inherit a `flock`, which outlives a killed parent. A lock of
`lockf` belongs to the process, so the folders that this process holds are remembered as well.
"""

import errno
import json
import os
import shutil
import socket
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from surestep.base.errors import RunError
from surestep.base.files import fsync, temp_name
from surestep.base.posix import fcntl
from surestep.base.text import escape_control_chars
from surestep.record.io import open_regular, read_regular

LOCK = "lock"
_MAX_SHOWN = 200  # characters of the lock file
_IN_USE = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_held: set[Path] = set()


class RunLock:
    """The lock on a run folder.

    Attributes:
        locked: whether the file system has locks; without them, no other process is kept out.
        text: what the lock file says about this process.

    Args:
        folder: to lock.
        option: that names a different folder, for the message.

    Raises:
        RunError: another session or process holds it; the message names the process.
        OSError: the folder is not writable.
    """

    def __init__(self, folder: Path, option: str = "--run (run= in Python)") -> None:
        self.folder = folder.resolve()
        if self.folder in _held:
            raise RunError(
                f"{folder} is in use by another session of this process. Call its close(), or "
                f"choose another folder with {option}."
            )
        path = self.folder / LOCK
        is_new = not os.path.lexists(path)
        self._file: IO[str] = open(  # noqa: SIM115  # closed by release()
            path, "a+", errors="replace", opener=_open_regular
        )
        try:
            self.locked = _lock(self._file, folder, option)
            self.text = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
            self._file.truncate(0)
            self._file.write(self.text)
            self._file.flush()
        except (OSError, RunError) as error:
            with suppress(OSError):
                self._file.close()
            if is_new and isinstance(error, OSError):
                path.unlink(missing_ok=True)
            raise
        _held.add(self.folder)

    def __del__(self) -> None:
        """Release the folder of a session that no one refers to."""
        if hasattr(self, "_file"):
            self.release()

    def release(self) -> None:
        """Release the folder; a second call does nothing."""
        if not self._file.closed and self.folder in _held:  # `_held` is gone at the exit
            _held.discard(self.folder)
            self._file.close()


def _lock(file: IO[str], folder: Path, option: str) -> bool:
    """Lock a file; return False if the file system has no locks."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        if error.errno not in _IN_USE:
            raise
        file.seek(0)
        text = file.read(_MAX_SHOWN).strip()
        try:
            known = json.loads(text)
            holder = f"process {known['pid']} on {known['host']}"
        except (ValueError, KeyError, TypeError, RecursionError):
            holder = escape_control_chars(text) or "another process"
        raise RunError(
            f"{folder} is in use by {holder}. Wait for it, stop it, or choose another folder with "
            f"{option}."
        ) from None
    return True


def is_locked(folder: Path) -> bool:
    """Return whether a process holds a folder; nothing is locked or changed to find out.

    False on a file system without locks.
    """
    if folder.resolve() in _held:  # closing the file here would release the lock
        return True
    is_darwin = sys.platform == "darwin"
    layout = struct.Struct("@qqihh" if is_darwin else "@hhqqi")
    whole_file = (0, 0, 0, fcntl.F_WRLCK, 0) if is_darwin else (fcntl.F_WRLCK, 0, 0, 0, 0)
    try:
        with open_regular(folder / LOCK) as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, layout.pack(*whole_file))
    except (OSError, ValueError):
        return False
    kind: int = layout.unpack(answer)[3 if is_darwin else 0]
    return kind != int(fcntl.F_UNLCK)


def lock_owner(folder: Path) -> str:
    """Return the text of a folder's lock file; "" if there is none.

    Not for the process that holds it: closing the file would release the lock.
    """
    try:
        return read_regular(folder / LOCK).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _open_regular(path: str, flags: int) -> int:
    if not os.path.islink(path) and not os.path.isdir(path):
        found = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if stat.S_ISREG(os.fstat(found).st_mode):
            return found
        os.close(found)
    raise RunError(f"{path} is a link or not a file. Move it away.")


def probe_filesystem(folder: Path, *, locked: bool) -> list[str]:
    """Try a rename and a sync in a run folder; return warnings about what does not work.

    `locked` is whether the file system accepted the lock on it.
    """
    place = temp_name(folder / "probe", "tmp")
    shutil.rmtree(place, ignore_errors=True)
    (place / "one").mkdir(parents=True)
    try:
        (place / "file").write_bytes(b"1")
        (place / "one" / "file").write_bytes(b"1")
        _try_renames(place)
        syncs = fsync(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    warnings = []
    if not locked:
        warnings.append(
            f"{folder} is on a file system without locks: nothing stops a second process from "
            "writing the same folder. Make sure that there is only one, or choose another folder "
            "with --run (run= in Python)."
        )
    if not syncs:
        warnings.append(
            f"{folder} is on a file system that does not sync folders: after a power cut the "
            "newest checkpoint may be missing; the one before it is there."
        )
    return warnings


def _try_renames(place: Path) -> None:
    """Rename a folder with a file in it, and a file over another, as publishing does."""
    try:
        (place / "one").rename(place / "two")
        (place / "two" / "file").replace(place / "file")
    except OSError as error:
        raise RunError(
            f"{place.parent} is on a file system that cannot rename what is in it "
            f"({error.strerror or error}), and a checkpoint is published by a rename. Choose "
            "another folder with --run (run= in Python), and copy it afterwards."
        ) from error
