"""Writing files so that a reader never sees half of one."""

import json
import math
import os
from pathlib import Path
from typing import Any

from surestep.base.errors import RunError

DISK_HINT = "Free some space, or choose another folder with --run (run= in Python)."


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it; numbers that are not finite become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Write JSON that every reader of JSON accepts."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except (TypeError, ValueError):  # something in it is not JSON; looking first costs 100 µs
        return json.dumps(plain(value), allow_nan=False, indent=indent, ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by this JSON, synced, in one move.

    Raises:
        RunError: the disk is full or cannot be written.
    """
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(dumps(value, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"{path} could not be written: {error.strerror}. {DISK_HINT}") from error


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        RunError: missing, or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing: {path.parent} is not a whole run folder.") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
