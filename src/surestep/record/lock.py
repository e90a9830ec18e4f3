"""One holder of a run folder at a time.

`lockf`, because a `flock` is inherited by forked data workers and outlives a killed parent.
A lock of `lockf` belongs to the process, so folders held by this process are remembered as well.
"""

import errno
import fcntl
import json
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from surestep.base.errors import RunError
from surestep.base.text import escape_control_chars
from surestep.record.io import read_regular

LOCK = "lock"
_SHORT = 200  # characters: who holds it
_HELD = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_held: set[Path] = set()


class RunLock:
    """The lock on a run folder.

    Attributes:
        locked: whether the file system has locks; where it has none, nobody else is kept out.
        said: what the file says of this holder.

    Raises:
        RunError: somebody else holds it; the message names them.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if self.folder in _held:
            raise RunError(
                f"{folder} is held by another session of this process. Call its close(), or "
                "choose another folder with run=."
            )
        path = self.folder / LOCK
        is_new = not os.path.lexists(path)
        self._file: IO[str] = open(  # noqa: SIM115  # closed by release()
            path, "a+", errors="replace", opener=_opened
        )
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.locked = True
        except OSError as error:
            if error.errno in _NO_LOCKS:
                self.locked = False
            elif error.errno in _HELD:
                self._refuse(folder)
            else:
                self._file.close()
                raise
        self.text = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        try:
            self._file.truncate(0)
            self._file.write(self.text)
            self._file.flush()
        except OSError:
            with suppress(OSError):
                self._file.close()
            if is_new:
                path.unlink(missing_ok=True)
            raise
        _held.add(self.folder)

    def _refuse(self, folder: Path) -> NoReturn:
        self._file.seek(0)
        holder = self._file.read(_SHORT).strip() or "somebody"
        self._file.close()
        raise RunError(
            f"{folder} is held by {_named(holder)}. Wait for it, stop it, or choose another "
            "folder with --run (run= in Python)."
        ) from None

    def __del__(self) -> None:
        """Let the folder go with a session that nobody holds any more."""
        if hasattr(self, "_file"):
            self.release()

    def release(self) -> None:
        """Let the folder go; a second call does nothing."""
        if self.folder in _held and not self._file.closed:
            _held.discard(self.folder)
            self._file.close()


def lock_owner(folder: Path) -> str:
    """Return what the lock of a folder says of who holds it, or held it; "" where there is none.

    The process that holds it must not ask: to close the file would let the lock go.
    """
    try:
        return read_regular(folder / LOCK).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _opened(path: str, flags: int) -> int:
    """Open what is a file.

    Raises:
        RunError: it is a link, or a pipe, which may wait for ever.
    """
    if not os.path.islink(path) and not os.path.isdir(path):
        found = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if stat.S_ISREG(os.fstat(found).st_mode):
            return found
        os.close(found)
    raise RunError(f"{path} is a link or no file. Move it away.")


def _named(holder: str) -> str:
    try:
        known = json.loads(holder)
        return f"process {known['pid']} on {known['host']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return escape_control_chars(holder)
