"""The state of a run, by its small files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from surestep.base.errors import SurestepError
from surestep.record.progress import state_of
from surestep.record.run import Run


class RunFiles:
    """The state of a run, and when its files were written to.

    Attributes:
        state: of the run; None if that cannot be read.
        problem: why the state cannot be read; else "".
        written: when the run was last written to, in seconds since 1970; None if it is gone.
        stamp: of the files other than events; it differs after a change.

    Args:
        path: the folder of the run.
    """

    def __init__(self, path: Path) -> None:
        self.state: str | None = None
        self.problem = ""
        try:
            self.state = state_of(path, Run(path).status)
        except SurestepError as error:
            self.problem = str(error)
        times = {}
        for name in ("status.json", "config.json", "events.jsonl"):
            with suppress(OSError):
                times[name] = os.stat(path / name).st_mtime
        self.written = max(times.values(), default=None)
        times.pop("events.jsonl", None)
        self.stamp = (self.state, self.problem, *times.values())
