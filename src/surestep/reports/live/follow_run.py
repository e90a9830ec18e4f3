"""Follow a run for its live page."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from surestep.base.errors import SurestepError
from surestep.record.records import read_records
from surestep.record.run import Run
from surestep.record.schemas import UNDOING
from surestep.reports.describe_run import describe_charts, describe_numbers
from surestep.reports.live.event_tail import EventTail
from surestep.reports.live.files import RunFiles
from surestep.reports.live.growth import MOST_POINTS, Growth
from surestep.reports.live.news import News
from surestep.reports.redact import redact
from surestep.reports.write import as_lists, encode_arrays

SHARE = 0.05  # of the time goes to describing runs, at most
SOONEST_S = 3.0  # until runs are described again
_READ_S = 0.5  # until the events that were read are published


class RunFollower:
    """Publishes what a run records.

    The points of curves are published as they are recorded. What is computed from the whole run is
    computed again at most every `SOONEST_S` seconds, and so rarely that it takes `SHARE` of the
    time: the numbers, and the whole charts after a resume and once they have many more points.

    Attributes:
        news: what the page shows.

    Args:
        run: may be running.
        name: its folder, for commands.
        redacted: leave out host, user, paths and environment.
    """

    def __init__(self, run: Run, name: str, *, redacted: bool = False) -> None:
        self.news = News()
        self._run, self._name = run, name
        self._clean: Callable[[Mapping[str, Any]], dict[str, Any]] = (
            partial(redact, paths=(name,)) if redacted else dict
        )
        self._tail = EventTail(run.path / "events.jsonl")
        self._growth: Growth | None = None  # None: the charts are to be published whole
        self._step: int | None = None
        self._seen: tuple[Any, ...] = ()
        self._is_changed, self._restarts = True, 0
        self._due = -math.inf

    def update(self) -> str:
        """Read and publish what is new; return why that failed, else ""."""
        files = RunFiles(self._run.path)
        events = self._tail.read(_READ_S if self._seen else math.inf)
        if self._tail.restarts > self._restarts:
            self._restarts, self._growth, self._due = self._tail.restarts, None, -math.inf
            self.news.restart()
        if files.stamp[:1] != self._seen[:1]:  # the state
            self._due = -math.inf
        self._is_changed = self._is_changed or bool(events) or files.stamp != self._seen
        self._seen = files.stamp
        if events and self._growth is not None:
            self._publish_points(events, self._growth)
        problem = files.problem or self._tail.problem
        if self._is_changed and not files.problem and time.monotonic() >= self._due:
            problem = self._describe() or problem
        status = {"state": files.state, "problem": problem}
        self.news.report(files.written, step=self._step, **self._clean(status))
        return problem

    def _publish_points(self, events: Sequence[Mapping[str, Any]], growth: Growth) -> None:
        records = read_records(events)
        is_undone = any(event["event"] in UNDOING for event in events)
        increment = None if is_undone else growth.add(records)
        if increment is None:
            self._growth = None
            return
        if len(records.trained):
            self._step = int(records.trained[-1])
        self.news.publish(increment=encode_arrays(self._clean(increment)))
        if growth.is_full or self.news.increments > MOST_POINTS:
            self._growth = None

    def _describe(self) -> str:
        """Publish what is computed from the whole run; return why that failed, else ""."""
        began, problem = time.monotonic(), ""
        try:
            records = self._tail.reader.build()
            numbers = describe_numbers(self._run, self._name, records)
            whole = None
            if self._growth is None:
                charts = describe_charts(self._run, records)
                self._growth = Growth(charts, self._run.config.get("decided", {}))
                whole = encode_arrays(self._clean(charts))
            self.news.publish(as_lists(self._clean(numbers)), charts=whole)
            self._step, self._is_changed = numbers["step"], False
        except SurestepError as error:
            problem = str(error)
        ends = time.monotonic()
        self._due = ends + max(SOONEST_S, (ends - began) / SHARE)
        return problem
