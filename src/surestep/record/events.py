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
    """Append events to a file; each is a whole line as soon as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            _cut_torn_line(path)
        fresh = not path.exists() or path.stat().st_size == 0
        self._file = path.open("a", encoding="utf-8")
        if fresh:
            self.write("format", version=FORMAT)

    def write(self, kind: str, **fields: Any) -> None:
        """Append an event.

        Raises:
            RunError: the disk is full or cannot be written.
        """
        try:
            self._file.write(dumps({"event": kind, "time": round(time.time(), 3), **fields}) + "\n")
            self._file.flush()
        except OSError as error:
            raise RunError(
                f"{self.path} could not be written: {error.strerror}. {DISK_HINT}"
            ) from error

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:
            raise RunError(
                f"{self.path} could not be closed: {error.strerror}. {DISK_HINT}"
            ) from error


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
