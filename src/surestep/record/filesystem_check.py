"""What a run relies on in the file system of its folder, tried when it starts.

A checkpoint is published by a rename, files are replaced by one, and both are synced with the names
in their folder. That two processes do not write the same folder is seen to by a lock.
"""

import fcntl
import os
import shutil
import struct
from pathlib import Path
from typing import IO

from surestep.base.errors import RunError
from surestep.record.io import fsync
from surestep.record.temp_files import temp_name

NETWORKED = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs"),
    *("9p", "afs", "orangefs", "fuse"),
)
_MOUNTS = Path("/proc/self/mountinfo")


def probe_filesystem(folder: Path, *, locked: bool) -> list[str]:
    """Try what is relied on; return what to tell: what is missing, or that a network has it all.

    Args:
        folder: of the run, which this process holds.
        locked: whether the file system took the lock on it.

    Raises:
        RunError: no checkpoint could be published there.
        OSError: the folder cannot be written.
    """
    place = temp_name(folder / "probe", "tmp")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        (place / "file").write_bytes(b"1")
        _try_renames(place)
        syncs = fsync(place)
        alone = locked and _keeps_out(place / "lock")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    kind = file_system(folder)
    on = f"{folder} is on a file system" + ("" if kind is None else f" ({kind})")
    told = []
    if not alone:
        told.append(
            f"{on} without locks: two processes that write this folder at once are not kept apart. "
            "See that there is one, or choose another folder with --run (run= in Python)."
        )
    if not syncs:
        told.append(
            f"{on} that does not sync folders: after a power cut the newest checkpoint may be "
            "missing, and the one before it is there."
        )
    if not told and kind is not None and kind.split(".")[0] in NETWORKED:
        told.append(f"{on} of a network: renames, locks and syncs were tried, and work.")
    return told


def _try_renames(place: Path) -> None:
    """Rename a folder with a file in it, and a file over another, as publishing does."""
    try:
        (place / "one").mkdir()
        (place / "one" / "file").write_bytes(b"1")
        (place / "one").rename(place / "two")
        (place / "two" / "file").replace(place / "file")
        works = (place / "file").exists() and not (place / "one").exists()
        why = "" if works else "the old name is still there"
    except OSError as error:
        works, why = False, error.strerror or str(error)
    if not works:
        raise RunError(
            f"{place.parent} is on a file system that cannot rename what is in it ({why}), and a "
            "checkpoint is published by a rename. Choose another folder with --run (run= in "
            "Python), and copy it afterwards."
        )


def _keeps_out(path: Path) -> bool:
    """Say whether a lock that this process holds is refused to somebody else.

    A lock of Linux's that belongs to an open file stands in for another process.
    """
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return True
    wish = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with path.open("wb") as ours, path.open("r+b") as theirs:
        fcntl.lockf(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return not _takes(theirs, wish)


def _takes(file: IO[bytes], wish: bytes) -> bool:
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, wish)
    except OSError:
        return False
    return True


def file_system(folder: Path) -> str | None:
    """Return the type of the file system that a folder is on, where Linux says it."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    kinds = [words[words.index("-") + 1] for words in map(str.split, lines) if words[2] == wanted]
    return kinds[-1] if kinds else None
