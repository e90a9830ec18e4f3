"""Read what is appended to the events of a run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from surestep.base.errors import SurestepError
from surestep.record.events import read_new_events
from surestep.record.records import RecordReader


class EventTail:
    """The events of a run, from the first on.

    Attributes:
        reader: has all events that were read.
        offset: of the first byte that was not read.
        restarts: how often a new file had replaced the one before.
        problem: why the events cannot be read further; "" if they can.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self.restarts = 0
        self.problem = ""
        self._start()

    def _start(self) -> None:
        self.reader, self.offset = RecordReader(), 0

    def read(self, most_s: float = math.inf) -> list[Mapping[str, Any]]:
        """Return the complete events that were appended, for at most so many seconds."""
        with suppress(OSError):  # reading it says what is wrong
            self._notice_other_file()
        ends = time.monotonic() + most_s
        events: list[Mapping[str, Any]] = []
        self.problem = ""
        try:
            for event, offset in read_new_events(self._path, self.offset):
                self.offset = offset
                self.reader.add(event)
                events.append(event)
                if time.monotonic() > ends:
                    break
        except SurestepError as error:
            self.problem = str(error)
        return events

    def _notice_other_file(self) -> None:
        found = os.stat(self._path)
        file = (found.st_dev, found.st_ino)
        if self._file not in (None, file) or found.st_size < self.offset:
            self.restarts += 1
            self._start()
        self._file = file
