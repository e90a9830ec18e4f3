"""Follow several runs for the live page that compares them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surestep.base.errors import SurestepError
from surestep.base.text import format_count
from surestep.record.run import Run
from surestep.reports.describe_runs import MOST_RUNS, RunRead, compare_runs, read_run
from surestep.reports.live.event_tail import EventTail
from surestep.reports.live.files import RunFiles
from surestep.reports.live.follow_run import SHARE, SOONEST_S
from surestep.reports.live.growth_of_runs import find_growth
from surestep.reports.live.news import News
from surestep.reports.redact import redact
from surestep.reports.write import as_lists, encode_arrays

_MOST_INCREMENTS = 100
_CHARTS = ("charts", "axes")  # of the numbers of a page, those that grow


@dataclass
class _Followed:
    """A run, and what was last read of it."""

    tail: EventTail
    seen: tuple[Any, ...] = ()
    files: RunFiles | None = None
    read: RunRead | None = None
    problem: str = ""


class RunsFollower:
    """Publishes what runs record, and those that are new.

    They are compared again at most every `SOONEST_S` seconds, and so rarely that it takes `SHARE`
    of the time.

    Attributes:
        news: what the page shows.

    Args:
        list_runs: returns the folders of the runs.
        about: what the runs are of, for the page.
        redacted: leave out host, user, paths and environment.
    """

    def __init__(
        self, list_runs: Callable[[], Sequence[str]], about: str = "", *, redacted: bool = False
    ) -> None:
        self.news = News()
        self._list, self._about = list_runs, about
        self._is_redacted = redacted
        self._runs: dict[str, _Followed] = {}
        self._shown: dict[str, Any] | None = None
        self._due = -math.inf

    def _clean(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return redact(data, self._runs) if self._is_redacted else dict(data)

    def update(self) -> str:
        """Read and publish what is new; return why that failed, else ""."""
        began = time.monotonic()
        if began < self._due:
            return ""
        problem, names = "", list(self._runs)
        try:
            names = list(self._list())
        except (SurestepError, OSError) as error:
            problem = str(error)
        if len(names) > MOST_RUNS:
            problem = (
                f"The page can have {MOST_RUNS} of {len(names)} runs. Name the runs to compare."
            )
        names = names[:MOST_RUNS]
        is_changed = names != list(self._runs) or self._shown is None
        self._runs = {
            name: self._runs.get(name) or _Followed(EventTail(Path(name) / "events.jsonl"))
            for name in names
        }
        for name, one in self._runs.items():
            is_changed = _read(name, one) or is_changed
        if is_changed:
            self._publish()
        self._report(problem)
        ends = time.monotonic()
        self._due = ends + max(SOONEST_S, (ends - began) / SHARE)
        return problem

    def _report(self, problem: str) -> None:
        files = [one.files for one in self._runs.values() if one.files is not None]
        running = sum(one.state == "running" for one in files)
        status = {
            "state": f"{running or 'none'} of {format_count(len(self._runs), 'run')} running",
            "problem": problem,
        }
        written = max((one.written for one in files if one.written), default=None)
        self.news.report(written, step=None, **self._clean(status))

    def _publish(self) -> None:
        reads = [one.read for one in self._runs.values() if one.read is not None]
        problems = {name: one.problem for name, one in self._runs.items() if one.problem}
        data = compare_runs(reads, problems) | {"about": self._about}
        charts = {name: data.pop(name) for name in _CHARTS}
        shown = charts | {"runs": [read.name for read in reads]}
        increment = None
        if self._shown is not None and self.news.increments < _MOST_INCREMENTS:
            increment = find_growth(self._shown, shown)
        self._shown = shown
        self.news.publish(
            as_lists(self._clean(data)),
            charts=encode_arrays(self._clean(charts)) if increment is None else None,
            increment=None if increment is None else encode_arrays(self._clean(increment)),
        )


def _read(name: str, one: _Followed) -> bool:
    """Read what is new of a run; return whether something is."""
    files = RunFiles(Path(name))
    one.files = files
    one.tail.read()
    seen = (files.stamp, one.tail.offset, one.tail.restarts, one.tail.problem)
    if seen == one.seen:
        return False
    one.seen, one.problem = seen, one.tail.problem or files.problem
    try:
        one.read = read_run(name, Run(Path(name)), one.tail.reader.build())
    except SurestepError as error:  # the page keeps what was read before
        one.problem = str(error)
    return True
