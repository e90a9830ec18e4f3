"""Try what a run needs of the file system of its folder: renames, and syncs of folders.

A checkpoint is published by a rename, and files are replaced by one.
"""

import shutil
from pathlib import Path

from surestep.base.errors import RunError
from surestep.record.io import fsync, temp_name


def probe_filesystem(folder: Path, *, locked: bool) -> list[str]:
    """Try a rename and a sync in a folder; return warnings about what does not work.

    Args:
        folder: of the run, which this process holds.
        locked: whether the file system accepted the lock on it.

    Raises:
        RunError: no checkpoint could be published there.
        OSError: the folder is not writable.
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
