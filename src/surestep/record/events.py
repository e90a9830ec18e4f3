"""events.jsonl: what happened in a run, in order, one JSON object a line.

The first line has the format. A "steps" event has lists with an entry for each step from `first`:
loss, grad_norm, lr, and what the task logged. NaN and infinity are text; unknown values are null.
"""

import os
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BufferedReader, BytesIO, FileIO
from itertools import count
from pathlib import Path
from typing import Any, cast

from surestep.base.errors import RunError
from surestep.base.text import escape_control_chars, format_count
from surestep.record.io import (
    COPY_HINT,
    LARGEST,
    MOST_SHOWN,
    dumps,
    explain_write_errors,
    open_regular,
    os_error_hint,
    parse_json,
    parse_line,
    size_of,
    unreadable_error,
)
from surestep.record.schemas import (
    AT_STEP,
    EVENT,
    EVENTS,
    EVENTS_FORMAT,
    STEPS,
    UNDOING,
    NewerFormatError,
    validate,
)

_TAIL = _CHUNK = 2**20  # bytes
_FIRST_CHUNK = 2**16  # all of a short run, and enough to know the form of its lines
# How the lines begin that `EventWriter` writes of going back to an earlier step.
_UNDOING = tuple(b'{"event": "%b"' % kind.encode() for kind in UNDOING)


class EventWriter:
    """Appends events to a file, each as a whole line.

    Events that cannot be written are kept and written before the next one. The file has no other
    buffer: a forked process would write its content again.

    Args:
        path: of the file.
        is_shared: another process writes to it too.
    """

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        self.path = path
        self._pending = bytearray()
        self._reported = False
        self._error: OSError | None = None
        if os.path.lexists(path) and not is_shared:  # another process may be writing a line
            _remove_torn_line(path)
        fresh = not path.exists() or path.stat().st_size == 0
        self._file = path.open("ab", buffering=0)
        if fresh:
            self.write("format", version=EVENTS_FORMAT)
        if self._error is not None:
            self._file.close()
            raise self._error

    def write(self, kind: str, **fields: Any) -> None:
        """Append an event."""
        text = dumps({"event": kind, "time": round(time.time(), 3), **fields})
        self._pending += f"{text}\n".encode()
        self._flush()

    def sync(self) -> None:
        """Wait until the events are on the disk.

        Raises:
            RunError: some cannot be written.
        """
        self._flush()
        try:
            if self._error is not None:
                raise self._error
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunError(
                f"{self.path} could not be written: {error.strerror}. {os_error_hint(error)}"
            ) from error

    def notice(self) -> str | None:
        """Return a message, once, while events cannot be written."""
        if self._error is None or self._reported:
            return None
        self._reported = True
        return (
            f"{self.path} could not be written: {self._error.strerror}. The run continues; "
            "events are kept in memory and written when that is possible."
        )

    def close(self) -> None:
        """Close the file.

        Raises:
            RunError: some events cannot be written.
        """
        try:
            self._flush()
            if self._error is not None:
                raise self._error
            self._file.close()
        except OSError as error:
            count = self._pending.count(b"\n")
            raise RunError(
                f"{self.path} could not be written: {error.strerror}. The last {count} events are "
                f"lost. {os_error_hint(error)}"
            ) from error
        finally:
            self._file.close()

    def _flush(self) -> None:
        if self._file.closed:
            return
        try:
            while self._pending:
                done = self._file.write(self._pending) or 0
                del self._pending[:done]
            self._error, self._reported = None, False
        except OSError as error:
            self._error = error


def _remove_torn_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed writer left."""
    try:
        size = size_of(path)
        with path.open("rb+") as file:
            begin = file.seek(max(0, size - LARGEST))
            end = begin + file.read(LARGEST).rfind(b"\n") + 1
            if begin and end == begin:
                raise ValueError(f"its last line has more than {LARGEST:,} bytes")
            if end < size:
                file.truncate(end)
                file.flush()
                os.fsync(file.fileno())
    except ValueError as error:
        raise unreadable_error(path, error) from error
    next(read_events(path), None)


def repair_events(path: Path) -> str | None:
    """Set aside the lines that are not events; return what was done, or that there are no events.

    Empty lines replace them, so that the offsets up to which trackers read stay the same.

    Raises:
        RunError: the file cannot be read, has a newer format, or cannot be written.
    """
    if not os.path.lexists(path) or (path.is_file() and not path.stat().st_size):
        how = "empty" if path.exists() else "missing"
        return f"{path} is {how}: what the run recorded before is lost. It records what follows."
    if not (damaged := _find_damage(path)):
        return None
    with explain_write_errors(path):
        aside = copy_aside(path, damaged)
        with open(os.open(path, os.O_RDWR | os.O_NOFOLLOW), "r+b") as file:
            for start, end in damaged:
                file.seek(start)
                for at in range(start, end, _TAIL):
                    file.write(b"\n" * min(_TAIL, end - at))
            file.flush()
            os.fsync(file.fileno())
    size = format_count(sum(end - start for start, end in damaged), "byte")
    places = format_count(len(damaged), "place")
    return (
        f"{path} was damaged: {size} in {places} were not events. They are in {aside.name} now; "
        "the other events are kept."
    )


def _find_damage(path: Path) -> list[tuple[int, int]]:
    """Return where the lines that are not events start and end; adjacent ones are one."""
    damaged: list[tuple[int, int]] = []
    end = 0
    try:
        with open_regular(path) as file, BufferedReader(cast("FileIO", file)) as lines:
            for line in iter(partial(lines.readline, LARGEST), b""):
                if len(line) == LARGEST:
                    raise ValueError(f"it has a line of more than {LARGEST:,} bytes")
                start, end = end, end + len(line)
                try:
                    parse_event(path, 0, line)
                except RunError as error:
                    if isinstance(error.__cause__, NewerFormatError):
                        raise
                    if damaged and damaged[-1][1] == start:
                        start = damaged.pop()[0]
                    damaged.append((start, end))
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error) from error
    return damaged


def copy_aside(path: Path, places: Iterable[tuple[int, int]]) -> Path:
    """Copy parts of a file into a new one beside it; return its path."""
    names = (path.with_name(f"{path.stem}-damaged-{n}{path.suffix}") for n in count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    with open_regular(path) as file, aside.open("xb") as copy:  # never through a link
        for start, end in places:
            file.seek(start)
            for at in range(start, end, _TAIL):
                copy.write(file.read(min(_TAIL, end - at)))
        copy.flush()
        os.fsync(copy.fileno())
    return aside


def last_step(path: Path) -> int | None:
    """Return the last step that the end of an events file has; None if it has none.

    At most 1 MiB is read, so that this takes as long for a long run as for a short one.
    """
    try:
        with open_regular(path) as file:
            file.seek(max(0, size_of(path) - _TAIL))
            lines = file.read(_TAIL).split(b"\n")
    except (OSError, ValueError):
        return None
    for line in reversed(lines):
        with suppress(ValueError):
            event = validate(STEPS, parse_json(line))
            return int(event["first"]) + len(event["loss"]) - 1
    return None


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events; an incomplete last line is left out.

    Raises:
        RunError: the file is missing or of a newer surestep, or another line is not an event.
    """
    numbers = count(1)
    for lines in read_lines(path):
        yield from parse_events(path, numbers, lines)


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an events file, many at once.

    The last of each is complete, except at the end of the file, or has `LARGEST` bytes.

    Raises:
        RunError: the file is missing, or cannot be read.
    """
    most = _FIRST_CHUNK
    try:
        with open_regular(path) as file, BufferedReader(cast("FileIO", file)) as lines:
            while data := lines.read(most):
                data += lines.readline(LARGEST - (len(data) - data.rfind(b"\n") - 1))
                yield data
                most = _CHUNK
    except FileNotFoundError:
        raise RunError(f"{path} is missing: there are no events. {COPY_HINT}") from None
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error) from error


def parse_events(path: Path, numbers: Iterator[int], lines: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of lines that have these numbers.

    Raises:
        RunError: as `parse_event`.
    """
    for line in BytesIO(lines):
        event = parse_event(path, next(numbers), line)
        if event is not None:
            yield event


def recorded_progress(path: Path, step: int) -> list[dict[str, Any]]:
    """Return what the events have of the progress after a step, oldest first.

    A run that resumes, also with another batch size, can take a step again. Each is returned, since
    a copy of an older checkpoint may have been put back.

    Returns:
        Nothing if the newest event of the step may be missing: all that are there were undone by
        going back to an earlier step, a damaged event was set aside, or the file cannot be read.
    """
    text, found, is_undone = b'"progress": {"step": %d,' % step, [], False
    try:
        with open_regular(path) as file, BufferedReader(cast("FileIO", file)) as lines:
            for line in iter(partial(lines.readline, LARGEST), b""):
                if line == b"\n":
                    return []
                if text in line:
                    found.append(validate(STEPS, parse_json(line))["progress"])
                    is_undone = False
                elif line.startswith(_UNDOING):
                    is_undone = is_undone or validate(AT_STEP, parse_json(line))["step"] < step
    except (OSError, ValueError):
        return []
    return [] if is_undone else found


def find_events(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind; the others are not parsed.

    Raises:
        RunError: the file cannot be read, or one of them is damaged.
    """
    start = b'{"event": "%b"' % kind.encode()
    with open_regular(path) as file, BufferedReader(cast("FileIO", file)) as lines:
        found = [
            line
            for line in iter(partial(lines.readline, LARGEST), b"")
            if line[:99].startswith(start)
        ]
    return [event for line in found if (event := parse_event(path, 0, line)) is not None]


def read_new_events(path: Path, offset: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the complete events from a byte offset on, each with the offset after it.

    Raises:
        RunError: the file is missing, shorter than the offset, or a line is not an event.
    """
    try:
        # Unbuffered, a line is read byte by byte.
        with open_regular(path) as file, BufferedReader(cast("FileIO", file)) as lines:
            if size_of(path) < offset:
                raise ValueError(f"it has less than the {offset} bytes that were read before")
            lines.seek(offset)
            while (line := lines.readline(LARGEST)).endswith(b"\n"):
                offset += len(line)
                event = parse_event(path, 0, line)
                if event is not None:
                    yield event, offset
            if len(line) == LARGEST:
                raise ValueError(f"it has a line of more than {LARGEST:,} bytes")
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error) from error


def parse_event(path: Path, number: int, line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None if the line is empty or incomplete."""
    if line == b"\n":
        return None
    try:
        event: dict[str, Any] = validate(EVENT, parse_line(line))
        if event["event"] in EVENTS:
            validate(EVENTS[event["event"]], event)
        return event
    except NewerFormatError as error:
        raise unreadable_error(path, error) from error
    except ValueError as error:
        if not line.endswith(b"\n") and len(line) < LARGEST:
            return None
        text = escape_control_chars(str(error))[:MOST_SHOWN]
        run = shlex.quote(str(path.parent))
        hint = f"Put a copy of the file back, or set the damage aside: surestep resume {run}"
        raise RunError(f"{path}, line {number} is not an event: {text}. {hint}") from error
