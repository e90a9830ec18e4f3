"""events.jsonl: one JSON object a line, what happened in order.

The first line names the format. A steps event holds lists, an entry for each step from `first`:
loss, grad_norm, lr, and what the task logged. Numbers that are not finite are their names in
quotes; what is not known is null.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surestep.base.errors import RunError
from surestep.record.files import DISK_HINT, dumps

FORMAT = 1


class EventWriter:
    """Append events to a file; each is a whole line as soon as it is written.

    What cannot be written is kept, and written before what comes next. There is no buffer but
    that: a forked process would write what is left in one again.

    Raises:
        OSError: the file cannot be begun.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._left = bytearray()
        self._told = False
        self._error: OSError | None = None
        if path.exists():
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
                f"lost. {DISK_HINT}"
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
    """Cut a last line that a killed writer left half written."""
    with path.open("rb+") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            file.truncate(end)
            file.flush()
            os.fsync(file.fileno())


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events; a torn last line is left out.

    Raises:
        RunError: missing, or from a newer surestep, or a line within is no JSON.
    """
    if not path.exists():
        raise RunError(f"{path} is missing: there are no events.")
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            event = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return  # no newline behind it: its writer was killed
            raise RunError(f"{path}, line {number} is not JSON: {error}.") from error
        if event.get("event") == "format" and event.get("version", 0) > FORMAT:
            raise RunError(
                f"{path} has format {event['version']}, and this surestep reads up to {FORMAT}. "
                "Install a newer one: pip install -U surestep."
            )
        yield event
