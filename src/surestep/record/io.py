"""Writing files so that a reader never sees half of one, and reading what anybody wrote.

What is read is a plain file of a size that fits in memory, never a link, a pipe or a device: to
open one of those may wait for ever, or reach what nobody meant.
"""

import errno
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import IO, Any

from surestep.base.errors import RunError
from surestep.base.text import escape_control_chars
from surestep.record.schema import Kind, NewerFormatError, anything
from surestep.record.temp_files import temp_name

LARGEST = 2**26  # bytes that are read at once: the record of some 300,000 tensors
MOST_SHOWN = 300  # characters of what was read that a message shows
DEEPEST = 100  # lists and dicts within each other
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # what is asked for is not known there
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
# A number that has neither many digits nor a long exponent is finite, so Python need not look.
_MAY_OVERFLOW = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
_FOLDER = "folder", " with --run (run= in Python)"  # what else to choose, and how
COPY_HINT = "Put a copy of it back, or start anew in another folder with --run (run= in Python)."


def to_jsonable(value: Any) -> Any:
    """Return `value` as JSON can hold it; numbers that are not finite become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): to_jsonable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Write JSON that every reader of JSON accepts."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except (TypeError, ValueError):  # something in it is not JSON; looking first costs 100 µs
        return json.dumps(to_jsonable(value), allow_nan=False, indent=indent, ensure_ascii=False)


def os_error_hint(error: OSError, other: tuple[str, str] = _FOLDER) -> str:
    """Return what to do where something cannot be written.

    Args:
        error: what the system said.
        other: what else to choose, and how that is said.
    """
    what, how = other
    if error.errno in _FULL:
        return f"Free some space, or choose another {what}{how}."
    if error.errno in _CLOSED:
        return f"Choose a {what} that can be written{how}."
    return f"Choose another {what}{how}."


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by this JSON, synced, in one move.

    Raises:
        RunError: the disk is full or cannot be written.
    """
    temporary = temp_name(path, "tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(dumps(value, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(
            f"{path} could not be written: {error.strerror}. {os_error_hint(error)}"
        ) from error


def read_json(path: Path, kind: Kind = anything, *, hint: str = COPY_HINT) -> Any:
    """Read a file of JSON that anybody may have written, in which each value is of its kind.

    Args:
        path: of the file.
        kind: of what is in it.
        hint: what to do where it cannot be read.

    Raises:
        RunError: missing, of a newer surestep, or not JSON of that kind.
    """
    try:
        return kind(parse_json(read_regular(path)), "it")
    except FileNotFoundError:
        raise RunError(
            f"{path} is missing: {path.parent} is not a whole run folder. {hint}"
        ) from None
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error, hint) from error


def unreadable_error(path: Path, error: OSError | ValueError, hint: str = COPY_HINT) -> RunError:
    """Return what to raise for a file of a run that cannot be read."""
    if isinstance(error, NewerFormatError):
        return RunError(f"{path} {error}")
    said = str(getattr(error, "strerror", None) or error)
    said = said if len(said) <= MOST_SHOWN else f"{said[:MOST_SHOWN]}..."
    return RunError(f"{path} cannot be read: {escape_control_chars(said)}. {hint}")


def open_regular(path: Path | str) -> IO[bytes]:
    """Open a file to read, unbuffered.

    Raises:
        OSError: missing or unreadable.
        ValueError: it is a link, or no file.
    """
    # O_NONBLOCK, because a pipe is opened only when somebody writes to it.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if os.path.islink(path):
            raise ValueError("it is a link") from error
        raise
    file = os.fdopen(descriptor, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("it is no file")
    return file


def size_of(path: Path) -> int:
    """Return the size of a file.

    Raises:
        OSError: missing or unreadable.
        ValueError: it is a link, or no file.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is a link or no file")
    return found.st_size


def read_regular(path: Path, most: int = LARGEST) -> bytes:
    """Read a file of at most so many bytes.

    Raises:
        OSError: missing or unreadable.
        ValueError: it is a link, no file, or larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes, and at most {most:,} are read")
        return file.read(size)


def parse_json(data: bytes) -> Any:
    """Parse JSON that means one thing: each key once, numbers that are finite, text that is text.

    Raises:
        ValueError: it is no JSON, or none of that kind, or nested too deep.
    """
    if not data.strip():
        raise ValueError("it is empty")
    try:
        found = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_number,
            parse_float=_number if _MAY_OVERFLOW.search(data) else None,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level = [found] if isinstance(found, (dict, list)) else []
    for _ in range(DEEPEST):
        parts = [each.values() if isinstance(each, dict) else each for each in level if each]
        level = [each for part in parts for each in part if isinstance(each, (dict, list))]
        if not level:
            break
    else:
        raise ValueError("it is nested too deep")
    if b"\\u" in data:
        json.dumps(found, ensure_ascii=False).encode()  # halves of characters are no text
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(n for n in found if names.count(n) > 1)!r} twice")
    return found


def _number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number")
    return value


def fsync(path: Path) -> bool:
    """Make the bytes of a file, or the names in a folder, survive a power cut.

    False where the file system syncs no folders; the start of a run tells so.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in _UNKNOWN and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return False
        raise
    finally:
        os.close(descriptor)
    return True
