"""events.jsonl: one JSON object a line, what happened in order.

The first line names the format. A steps event holds lists, an entry for each step from `first`:
loss, grad_norm, lr, and what the task logged. Numbers that are not finite are their names in
quotes; what is not known is null.
"""

import os
import time
from collections.abc import Iterator
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, cast

from surestep.base.errors import RunError
from surestep.base.text import escape_control_chars
from surestep.record.io import (
    COPY_HINT,
    LARGEST,
    MOST_SHOWN,
    dumps,
    open_regular,
    os_error_hint,
    parse_json,
    size_of,
    unreadable_error,
)
from surestep.record.schema import (
    Kind,
    NewerFormatError,
    anything,
    count,
    list_of,
    number,
    open_object,
    optional,
    pair,
    text,
    version,
)

FORMAT = 2
_EVENT = open_object({"event": text}, {"time": number})
_SKIPPED = open_object(
    {
        **{"step": count, "epoch": count, "reason": text},
        "positions": optional(pair(count, count)),
        "samples": optional(list_of(count)),
    }
)
_EVENTS: dict[str, Kind] = {  # those that are read again, by what they are called
    "format": open_object({"version": version(FORMAT)}),
    **dict.fromkeys(("resume", "restart", "rollback"), open_object({"step": count})),
    "skipped": _SKIPPED,
}


class EventWriter:
    """Append events to a file; each is a whole line as soon as it is written.

    What cannot be written is kept, and written before what comes next. There is no buffer but
    that: a forked process would write what is left in one again.

    Raises:
        OSError: the file cannot be begun.
        RunError: it is there, and is no file of events, or one of a newer surestep.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._left = bytearray()
        self._told = False
        self._error: OSError | None = None
        if os.path.lexists(path):
            _cut_torn_line(path)
        fresh = not path.exists() or path.stat().st_size == 0
        self._file = path.open("ab", buffering=0)
        if fresh:
            self.write("format", version=FORMAT)
        if self._error is not None:
            self._file.close()
            raise self._error

    def write(self, kind: str, **fields: Any) -> None:
        """Append an event."""
        text = dumps({"event": kind, "time": round(time.time(), 3), **fields})
        self._left += f"{text}\n".encode()
        self._flush()

    def notice(self) -> str | None:
        """Return what there is to tell: once, that events cannot be written, until they can."""
        if self._error is None or self._told:
            return None
        self._told = True
        return (
            f"{self.path} could not be written: {self._error.strerror}. The run goes on; what "
            "happens is kept in memory, and written when that is possible."
        )

    def close(self) -> None:
        """Close the file.

        Raises:
            RunError: there are events left that cannot be written.
        """
        try:
            self._flush()
            if self._error is not None:
                raise self._error
            self._file.close()
        except OSError as error:
            count = self._left.count(b"\n")
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
            while self._left:
                done = self._file.write(self._left) or 0
                del self._left[:done]
            self._error, self._told = None, False
        except OSError as error:
            self._error = error


def _cut_torn_line(path: Path) -> None:
    """Cut a last line that a killed writer left half written.

    Raises:
        RunError: it is no file of events, or one of a newer surestep.
    """
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


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events; a torn last line is left out.

    Raises:
        RunError: missing, or from a newer surestep, or a line within is no event.
    """
    try:
        with open_regular(path) as file, BufferedReader(cast("FileIO", file)) as lines:
            for place, line in enumerate(iter(partial(lines.readline, LARGEST), b""), 1):
                event = _event(path, place, line)
                if event is not None:
                    yield event
    except FileNotFoundError:
        raise RunError(f"{path} is missing: there are no events. {COPY_HINT}") from None
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error) from error


def _event(path: Path, place: int, line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None of an empty one, and of one whose writer was killed."""
    if line == b"\n":
        return None
    try:
        event: dict[str, Any] = _EVENT(parse_json(line), "it")
        _EVENTS.get(event["event"], anything)(event, "it")
    except NewerFormatError as error:
        raise unreadable_error(path, error) from error
    except ValueError as error:
        if not line.endswith(b"\n") and len(line) < LARGEST:
            return None
        said = escape_control_chars(str(error))[:MOST_SHOWN]
        raise RunError(f"{path}, line {place} is no event: {said}. {COPY_HINT}") from error
    return event
