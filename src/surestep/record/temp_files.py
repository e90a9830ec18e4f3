"""What is half done bears the name of who does it, so that it can be swept once they are dead."""

import errno
import os
import re
import shutil
import socket
import time
from functools import cache
from pathlib import Path

_HALF_DONE = re.compile(r"\.(tmp|del|old)-(.+)-at-(.*)-(\d+)")
_DAY_S = 86400
TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)  # what is said of a name that is taken


def temp_name(path: Path, kind: str) -> Path:
    """Return the name of what is to become, makes way for, or was `path`, of this process.

    Args:
        path: what it is about.
        kind: "tmp" (to become it), "old" (makes way) or "del" (is being deleted).
    """
    return path.with_name(f".{kind}-{path.name}-at-{_here()}-{os.getpid()}")


def remove_stale(folder: Path, *, alone: bool = False) -> None:
    """Delete what processes that died left half done; only the run folder's holder may.

    What a living process of this machine is at stays, and what another machine was at within a
    day: whether its process lives is not known here. A checkpoint that was making way for a newer
    one of the same step is given its name back, where the newer one has not got it.

    Args:
        folder: what lies in it is looked at.
        alone: nobody but who calls this writes here, as a lock proves: nothing stays half done.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        match = _HALF_DONE.fullmatch(path.name)
        if match is None or (not alone and _may_live(path, match[3], int(match[4]))):
            continue
        final = folder / match[2]
        if match[1] == "old" and not final.exists():
            path.rename(final)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _may_live(path: Path, host: str, pid: int) -> bool:
    if host != _here():
        return time.time() - path.lstat().st_mtime < _DAY_S
    return pid != os.getpid() and _lives(pid)


@cache  # asking lets the training go first, whose turn may last a millisecond
def _here() -> str:
    return socket.gethostname()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
