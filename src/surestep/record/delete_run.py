"""Delete a run folder below another folder: no link is followed, and no run that is in use."""

import os
import shlex
import shutil
import stat
from contextlib import ExitStack
from pathlib import Path

from surestep.base.errors import RunError
from surestep.record.lock import LOCK, RunLock
from surestep.record.run import Run

# Deleted last, in this order: what a killed deletion leaves is a run, which can be deleted again.
_LAST = ("config.json", LOCK)


def delete_run(path: Path, *, below: Path) -> None:
    """Delete a run folder with all that is in it. Links in it are deleted, not followed.

    Args:
        path: the run, as a path that begins with `below`.
        below: the folder of the runs.

    Raises:
        RunError: a process uses the run; it is not a run, or not below the folder, or below it only
            through a link; or the file system does not allow it.
    """
    parts = path.relative_to(below).parts if path.is_relative_to(below) else ()
    if not parts or ".." in parts:
        raise RunError(f"{path} is not below {below}. Pass the folder that the run is in.")
    run = _open_run(path)
    try:
        with ExitStack() as stack:
            above = _open_folder(os.fspath(below), stack)
            for part in parts[:-1]:
                above = _open_folder(part, stack, above)
            folder = _open_folder(parts[-1], stack, above)
            if not os.path.samestat(os.fstat(folder), os.lstat(path)):
                raise RunError(f"{path} was replaced while it was to be deleted.")
            lock = RunLock(path)
            stack.callback(lock.release)
            if not lock.locked and run.status["status"] == "running":
                raise RunError(
                    f"{path} may be running: its file system has no locks, and its status.json "
                    f"says so. If it is not, delete it: {_by_hand(path)}"
                )
            for name in sorted(os.listdir(folder), key=lambda name: (name in _LAST, name)):
                if name == LOCK:
                    lock.release()  # some file systems keep a file that is open
                _remove(name, folder)
            os.rmdir(parts[-1], dir_fd=above)
    except OSError as error:
        raise RunError(f"{path} could not be deleted: {error.strerror or error}.") from error


def _open_run(path: Path) -> Run:
    """Return the run; a folder without a readable config.json may be something else."""
    try:
        run = Run(path)
        assert run.config
    except RunError as error:
        raise RunError(f"{error} If it is a run, delete it: {_by_hand(path)}") from error
    return run


def _by_hand(path: Path) -> str:
    return shlex.join(["rm", "-r", str(path)])


def _open_folder(name: str, stack: ExitStack, above: int | None = None) -> int:
    """Open a folder; in another one, it must not be a link."""
    link = 0 if above is None else os.O_NOFOLLOW
    found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | link, dir_fd=above)
    stack.callback(os.close, found)
    return found


def _remove(name: str, folder: int) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)
