"""Write files so that a reader never sees half of one, and read files that anyone may have written.

Only regular files of a limited size are read, never links, pipes or devices: to open one of those
can wait forever, or reach something that no one meant.

Temporary files and folders carry host and pid, so that stale ones can be removed.
"""

import errno
import json
import math
import os
import re
import shutil
import socket
import stat
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from surestep.base.errors import CheckpointError, ConfigError, RunError, suggest_names
from surestep.base.paths import require_local_path
from surestep.base.text import escape_control_chars
from surestep.record.schemas import NewerFormatError, validate

LARGEST = 2**26  # bytes read at once: the record of some 300,000 tensors
MOST_SHOWN = 300  # characters of a file that a message shows
DEEPEST = 100  # nested lists and dicts
_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
# A number with few digits and a short exponent is finite, so Python need not check.
_MAY_OVERFLOW = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
_TEMPORARY = re.compile(r"\.(tmp|del|old)-(.+)-at-(.*)-(\d+)")
_DAY_S = 86400
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


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; then sync it and give it the name `path`, unless the body raised."""
    temporary = temp_name(path, "tmp")
    try:
        temporary.unlink(missing_ok=True)
        yield temporary
        fsync(temporary)
        temporary.replace(path)
        fsync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


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


def fsync(path: Path) -> bool:
    """Sync the bytes of a file or the names in a folder; False if the system syncs no folders."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno in _UNSUPPORTED and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return False
        raise
    finally:
        os.close(descriptor)
    return True


def temp_name(path: Path, kind: str) -> Path:
    """Return a name of this process beside `path`, its final path.

    The kind is "tmp" (will become it), "old" (is replaced by it) or "del" (is being deleted).
    """
    return path.with_name(f".{kind}-{path.name}-at-{_host()}-{os.getpid()}")


def publish(temporary: Path, final: Path) -> None:
    """Rename a temporary folder to its final name; an existing one is replaced."""
    old: Path | None = None
    try:
        temporary.rename(final)
    except OSError as error:
        if error.errno not in _NAME_TAKEN:
            raise
        old = temp_name(final, "old")
        final.rename(old)
        try:
            temporary.rename(final)
        except OSError:
            old.rename(final)
            raise
    fsync(final.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def remove_stale(folder: Path, *, locked: bool = False) -> None:
    """Delete what dead processes left in a folder; only the holder of the run folder may.

    Files of living processes stay, and those of other machines for a day; if `locked`, a lock
    proves that all is stale. An "old" checkpoint gets its name back if no newer one has it.
    """
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or (not locked and _may_live(path, match[3], int(match[4]))):
            continue
        final = folder / match[2]
        if match[1] == "old" and not final.exists():
            path.rename(final)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _may_live(path: Path, host: str, pid: int) -> bool:
    if host != _host():
        return time.time() - path.lstat().st_mtime < _DAY_S
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@cache  # the call releases the GIL to training, and getting it back can take a millisecond
def _host() -> str:
    return socket.gethostname()
