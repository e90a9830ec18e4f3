"""Write the files of a run, and read files that anyone may have written.

Only regular files of a limited size are read, never links, pipes or devices: to open one of those
can wait forever, or reach something that no one meant.
"""

import errno
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import orjson
from pydantic import TypeAdapter

from surestep.base.errors import CheckpointError, ConfigError, RunError, suggest_names
from surestep.base.files import replace_file
from surestep.base.paths import require_local_path
from surestep.base.text import escape_control_chars
from surestep.record.schemas import NewerFormatError, validate

LARGEST = 2**26  # bytes read at once: the record of some 300,000 tensors
MOST_SHOWN = 300  # characters of a file that a message shows
DEEPEST = 100  # nested lists and dicts
_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
# A number with few digits and a short exponent is finite, so Python need not check.
_MAY_OVERFLOW = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
COPY_HINT = "Put a copy of it back, or start again in another folder with --run (run= in Python)."


def to_jsonable(value: Any) -> Any:
    """Return `value` as JSON can hold it; NaN and infinity become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Return strict JSON: NaN and infinity become text."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except (TypeError, ValueError):  # something is not JSON; checking first costs 100 µs
        return json.dumps(to_jsonable(value), allow_nan=False, indent=indent, ensure_ascii=False)


def os_error_hint(
    error: OSError, what: str = "folder", how: str = " with --run (run= in Python)"
) -> str:
    """Return what to do about a path that cannot be written: what else to choose, and how."""
    if error.errno in _FULL:
        return f"Free some space, or choose another {what}{how}."
    if error.errno in _READ_ONLY:
        return f"Choose a {what} that can be written{how}."
    return f"Choose another {what}{how}."


@contextmanager
def explain_write_errors(
    path: Path, *other: str, kind: type[RunError] | type[CheckpointError] = RunError
) -> Iterator[None]:
    """Raise an OSError of the body as one that says what to do; see `os_error_hint`."""
    try:
        yield
    except OSError as error:
        hint = os_error_hint(error, *other)
        raise kind(f"{path} could not be written: {error.strerror or error}. {hint}") from error


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by this JSON, synced."""
    with explain_write_errors(path), replace_file(path) as temporary:
        temporary.write_text(dumps(value, indent=1) + "\n", encoding="utf-8")


def check_output(path: Path, endings: Collection[str], *, overwrite: bool) -> None:
    """Check that a file that the user names can be written.

    Raises:
        ConfigError: its ending is not one of these, its folder is missing, or it exists.
        RunError: it is an address.
    """
    require_local_path(path)
    if path.suffix not in endings:
        raise ConfigError(
            f"{str(path)!r}: the ending decides the format, and {path.suffix or 'none'!r} is not "
            f"one. {suggest_names(path.suffix, endings)}"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"There is no folder {path.parent} to write {path.name} into. Make it.")
    if path.is_dir():
        example = path / f"a{next(iter(endings))}"
        raise ConfigError(f"{path} is a folder. Name a file in it, such as {example}.")
    if not overwrite and (path.exists() or path.is_symlink()):
        raise ConfigError(
            f"{path} exists. Set --overwrite (overwrite=True in Python) to replace it, or choose "
            "another file."
        )


def read_json(path: Path, schema: TypeAdapter[Any] | None = None, *, hint: str = COPY_HINT) -> Any:
    """Read a JSON file that anyone may have written, and check it against a schema.

    Args:
        path: of the file.
        schema: of its content; None accepts anything.
        hint: what to do if it cannot be read.

    Raises:
        RunError: it is missing, of a newer surestep, or does not fit the schema.
    """
    try:
        found = parse_json(read_regular(path))
        return found if schema is None else validate(schema, found)
    except FileNotFoundError:
        raise RunError(
            f"{path} is missing: {path.parent} is not a complete run folder. {hint}"
        ) from None
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error, hint) from error


def unreadable_error(path: Path, error: OSError | ValueError, hint: str = COPY_HINT) -> RunError:
    """Return the error for a file of a run that cannot be read."""
    if isinstance(error, NewerFormatError):
        return RunError(f"{path} {error}")
    text = str(getattr(error, "strerror", None) or error)
    text = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return RunError(f"{path} cannot be read: {escape_control_chars(text)}. {hint}")


def open_regular(path: Path | str) -> IO[bytes]:
    """Open a regular file for reading, unbuffered.

    Raises:
        OSError: missing or unreadable.
        ValueError: it is a link, or not a regular file.
    """
    # O_NONBLOCK, because opening a pipe waits for its writer.
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
        raise ValueError("it is not a file")
    return file


def size_of(path: Path) -> int:
    """Return the size of a regular file."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is a link or not a file")
    return found.st_size


def read_regular(path: Path, most: int = LARGEST) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises:
        OSError: missing or unreadable.
        ValueError: it is a link, not a regular file, or larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes, and at most {most:,} are read")
        return file.read(size)


def parse_json(data: bytes) -> Any:
    """Parse JSON in which no key repeats, numbers are finite and text is valid Unicode.

    Raises:
        ValueError: it is not such JSON, or nested too deep.
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
        parts = [item.values() if isinstance(item, dict) else item for item in level if item]
        level = [item for part in parts for item in part if isinstance(item, (dict, list))]
        if not level:
            break
    else:
        raise ValueError("it is nested too deep")
    if b"\\u" in data:
        json.dumps(found, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    return found


def parse_line(line: bytes) -> Any:
    """Parse a line of JSON as `parse_json` does, 20 times as fast; large integers are floats.

    Raises:
        ValueError: as `parse_json`.
    """
    # orjson keeps the last of repeated keys. Without escapes, each key and text has two quotes.
    if b"\\" not in line and line.count(b"[") + line.count(b"{") <= DEEPEST:
        with suppress(orjson.JSONDecodeError):
            found = orjson.loads(line)
            quotes = line.count(b'"')
            if any(quotes == 2 * _count_texts(found, lists) for lists in (False, True)):
                return found
    return parse_json(line)


def _count_texts(found: Any, lists: bool) -> int:
    """Count the keys and the texts; those in lists only if asked, since lists are long."""
    if isinstance(found, dict):
        return len(found) + sum(_count_texts(value, lists) for value in found.values())
    if lists and isinstance(found, list):
        return sum(_count_texts(value, lists) for value in found)
    return isinstance(found, str)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"it has {next(name for name in counts if counts[name] > 1)!r} twice")
    return found


def _number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a number")
    return value
