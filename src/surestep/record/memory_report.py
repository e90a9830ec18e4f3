"""What a run wrote when memory ran out: `out-of-memory-*.json` in its folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surestep.base.errors import RunError
from surestep.record.io import read_json, write_json
from surestep.record.schemas import MEMORY_FORMAT, MEMORY_REPORT

_NAME = re.compile(r"out-of-memory-(step|evaluation)-(\d+)(-rank-\d+)?\.json")


@dataclass(frozen=True)
class MemoryReport:
    """A report that was read; the record is the content of the file.

    Attributes:
        step: in which memory ran out, or after which an evaluation began.
        text: the message of the error, of several lines.
    """

    path: Path
    step: int
    text: str
    record: Mapping[str, Any]


def write_memory_report(path: Path, content: Mapping[str, Any]) -> None:
    """Write a report.

    Raises:
        RunError: the disk is full or not writable.
    """
    write_json(path, {"format": MEMORY_FORMAT, **content})


def memory_reports_of(run: Path) -> Iterator[MemoryReport]:
    """Yield the readable reports of a run, by step."""
    matches = [(path, match) for path in run.iterdir() if (match := _NAME.fullmatch(path.name))]
    for path, match in sorted(matches, key=lambda pair: (int(pair[1][2]), pair[0].name)):
        with suppress(RunError):
            record = read_json(path, MEMORY_REPORT)
            yield MemoryReport(path, int(match[2]), str(record["text"]), record)
