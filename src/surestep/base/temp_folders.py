"""Temporary folders of which a killed process leaves nothing for long.

Those of one process are in one folder with a file that it locks. The lock ends with the process,
so the next process that needs a temporary folder removes those of dead ones. `lockf`, because
forked data workers would inherit a `flock`.
"""

import errno
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import current_process
from multiprocessing.util import Finalize
from pathlib import Path

PREFIX = "sure-"  # as short as "pymp-" of multiprocessing, since paths of sockets have a limit
_LOCK = ".surestep-lock"
_IN_USE = (errno.EACCES, errno.EAGAIN)
_guard = threading.Lock()
_own: dict[int, Path] = {}  # by process id, since a forked process has another one


@contextmanager
def make_temp_folder() -> Iterator[Path]:
    """Make a temporary folder for a block.

    Raises:
        OSError: the system's folder for temporary files cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="", dir=_own_folder()) as folder:
        yield Path(folder)


def use_for_workers() -> None:
    """Have the processes that multiprocessing starts from now on put their sockets there.

    A data worker that shares tensors has one; if it is killed, multiprocessing leaves its folder.
    """
    config = getattr(current_process(), "_config", {})
    if config.get("tempdir") is None or not Path(config["tempdir"]).is_dir():
        config["tempdir"] = str(_own_folder())


def _own_folder() -> Path:
    """Return the folder of this process; the first call makes it, and removes those of the dead.

    Systems remove old temporary files, even those of a program that still runs.
    """
    with _guard:
        if os.getpid() not in _own or not _own[os.getpid()].is_dir():
            place = Path(tempfile.gettempdir())
            remove_stale_folders(place)
            _own[os.getpid()] = folder = _make_locked(place)
            Finalize(None, _remove, args=(folder,), exitpriority=-100)  # as multiprocessing does
        return _own[os.getpid()]


def _make_locked(place: Path) -> Path:
    """Make a folder and lock it; another process may take it for stale before it is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # open until the end
        try:
            _lock(lock)
        except OSError as error:
            if error.errno not in _IN_USE:  # no locks here, so no one removes it
                return folder
        else:
            if os.fstat(lock).st_nlink:
                return folder
        os.close(lock)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _own.pop(os.getpid(), None)


def remove_stale_folders(place: Path) -> None:
    """Remove the folders of dead processes of this user.

    Args:
        place: the system's folder for temporary files.
    """
    for folder in place.glob(f"{PREFIX}*") if os.name == "posix" else ():
        with suppress(OSError):  # it is gone, or not ours
            found = folder.lstat()
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if not is_ours or folder in _own.values():  # to close the lock would release it
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                _lock(lock)  # fails if its process lives
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(file: int) -> None:
    """Lock an open file until this process ends; raise OSError if another process holds it."""
    try:
        import fcntl
    except ImportError:  # Windows
        raise OSError(errno.ENOLCK, "No locks available") from None
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
