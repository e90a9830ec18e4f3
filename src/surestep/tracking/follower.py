"""Send the events of a run to a tracker, in a thread that reads the run folder.

The events are the queue: however slow or broken a tracker is, training only appends to a file. What
was delivered is recorded as a byte offset in `trackers/NAME.json`, from which a restart continues.
"""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from surestep.base.secrets import describe_error
from surestep.record.checkpoint.discovery import checkpoint_name
from surestep.record.events import read_new_events
from surestep.record.io import read_json, write_json
from surestep.record.schemas import CONFIG, ENVIRONMENT, PLAN, TRACKER
from surestep.tracking.points import numbers_of, read_histograms, read_points
from surestep.tracking.tracker import Point, TrackedRun, Tracker

if TYPE_CHECKING:
    from torch import nn

INTERVAL_S = 5.0  # between two reads of the events: a request costs the same for more values
LONGEST_PAUSE_S = 30.0  # between two attempts to reach a tracker
LAST_S = 20.0  # for what is left when a run ends
BATCH = 500  # events that are sent, and recorded as delivered, at once


class Delivery:
    """Sends the events of a run to a tracker, from where the last delivery ended.

    Args:
        folder: of the run.
        tracker: gets them.
        from_start: send also what was delivered before.
        load_model: see `TrackedRun`.

    Attributes:
        offset: bytes of the events that were delivered.
    """

    def __init__(
        self,
        folder: Path,
        tracker: Tracker,
        *,
        from_start: bool = False,
        load_model: Callable[[], "nn.Module"] | None = None,
    ) -> None:
        self.folder = folder
        self._load_model = load_model
        self.tracker = tracker
        self._events = folder / "events.jsonl"
        self._record_path = folder / "trackers" / f"{tracker.name}.json"
        self._is_started = self._is_abandoned = False
        self._lock = Lock()
        record: dict[str, Any] = {"offset": 0, "state": {}}
        if self._record_path.exists():
            record = read_json(self._record_path, TRACKER)
        self._from_start = from_start
        self.offset: int = 0 if from_start else record["offset"]
        self._state: dict[str, Any] = record["state"]
        self._key: str | None = record.get("key")
        evaluated = () if from_start else record.get("evaluated", ())  # older versions write none
        # By step, since the last checkpoint.
        self._evaluated = {entry["step"]: numbers_of(entry["metrics"]) for entry in evaluated}

    @property
    def pending(self) -> bool:
        """Whether there are events that were not delivered."""
        return self._events.exists() and self._events.stat().st_size > self.offset

    def deliver(self) -> None:
        """Send what is new; an exception of the tracker leaves the rest for the next call."""
        events = read_new_events(self._events, self.offset)
        while batch := list(islice(events, BATCH)):
            if not self._is_started:
                self._start()
            self._send(event for event, _ in batch)
            self.offset = batch[-1][1]
            self._record()

    def close(self) -> None:
        """Disconnect the tracker, if it was started."""
        if self._is_started:
            self._is_started = False
            self.tracker.close()

    def _start(self) -> None:
        if self._key is None:
            self._key = uuid4().hex
            self._record()  # before the tracker creates anything with it
        options = read_json(self.folder / "plan.json", PLAN)
        config = read_json(self.folder / "config.json", CONFIG)
        task = config.get("task", {})
        run = TrackedRun(
            path=self.folder,
            name=self.folder.resolve().name,
            options=options | {f"task.{name}": value for name, value in task.items()},
            environment=read_json(self.folder / "environment.json", ENVIRONMENT),
            key=self._key,
            state=self._state,
            from_start=self._from_start and not self.offset,
            study=config.get("study"),
            load_model=self._load_model if self.tracker.uses_model else None,
        )
        self._state = dict(self.tracker.start(run) or self._state)
        self._is_started = True
        self._record()

    def _send(self, events: Iterator[dict[str, Any]]) -> None:
        points: list[Point] = []
        for event in events:
            points += read_points(event)
            if event["event"] == "evaluation" and "which" not in event:
                self._evaluated.setdefault(event["step"], {}).update(numbers_of(event["metrics"]))
            if event["event"] in ("resume", "restart", "rollback"):  # it undoes later steps
                kept = event["step"]
                self._evaluated = {at: m for at, m in self._evaluated.items() if at <= kept}
            if event["event"] in ("histograms", "checkpoint", "resume", "branch", "end"):
                self._log(points)
                self._call(event)
        self._log(points)

    def _call(self, event: dict[str, Any]) -> None:
        """Call the method of the tracker for an event that is not a point."""
        if event["event"] == "end":
            self.tracker.findings(event.get("findings", []))
            self.tracker.end(event["status"], event)
            return
        if event["event"] == "histograms":
            self.tracker.histograms(event["step"], event["time"], read_histograms(event))
            return
        run = Path(event["run"]) if event["event"] == "branch" else self.folder
        step = event["step"]
        path = run / "checkpoints" / checkpoint_name(step)
        if event["event"] == "checkpoint":
            self._evaluated = {at: found for at, found in self._evaluated.items() if at >= step}
            self.tracker.checkpoint(path, step, self._evaluated.get(step, {}))
        else:
            self.tracker.resume(path, step)

    def _log(self, points: list[Point]) -> None:
        if points:
            self.tracker.log(tuple(points))
            points.clear()

    def abandon(self) -> None:
        """Record nothing from now on: a call of the tracker may still return, at any time."""
        with self._lock:
            self._is_abandoned = True

    def _record(self) -> None:
        record = {
            "offset": self.offset,
            "state": self._state,
            "key": self._key,
            "evaluated": [{"step": at, "metrics": found} for at, found in self._evaluated.items()],
        }
        with self._lock:
            if not self._is_abandoned:
                self._record_path.parent.mkdir(exist_ok=True)
                write_json(self._record_path, record)


class Follower:
    """Delivers the events of a running run in a thread, again and again until it is closed.

    Args:
        delivery: to the tracker.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._closing = Event()
        self._gave_up = Event()
        self._message: str | None = None
        self._failures = 0
        name = f"surestep-{delivery.tracker.name}"
        self._thread = Thread(target=self._follow, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def notice(self) -> str | None:
        """Return a message about the tracker, each once."""
        message, self._message = self._message, None
        return message

    def close(self, print_line: Callable[[str], None]) -> None:
        """Deliver the rest, for at most LAST_S seconds; print if something is still missing."""
        self._closing.set()
        self._thread.join(LAST_S)
        self._gave_up.set()
        self.delivery.abandon()
        if (message := self.notice()) is not None:
            print_line(message)
        if self._thread.is_alive() or self.delivery.pending:
            tracker, folder = self.delivery.tracker.name, self.delivery.folder
            print_line(
                f"{tracker} did not take everything that was recorded. To send the rest: surestep "
                f"track replay {shlex.quote(str(folder))} --to {tracker}"
            )

    def _follow(self) -> None:
        pause, is_last = INTERVAL_S, False
        while not self._gave_up.is_set():
            is_last = self._closing.wait(pause)
            try:
                if self.delivery.pending:
                    self.delivery.deliver()
                pause = INTERVAL_S
                if self._failures:
                    self._failures = 0
                    self._message = f"{self.delivery.tracker.name} has got what it had missed."
            except Exception as error:  # whatever the tracker's library raises
                self._failures += 1
                pause = min(LONGEST_PAUSE_S, 2.0 ** min(self._failures, 5))
                if self._failures == 1:
                    self._message = self._describe(error)
                with suppress(Exception):
                    self.delivery.close()
                if is_last:
                    time.sleep(min(pause, 1.0))
                    continue
            if is_last and not self.delivery.pending:
                break
        with suppress(Exception):
            self.delivery.close()

    def _describe(self, error: Exception) -> str:
        name = self.delivery.tracker.name
        return (
            f"{name} does not take what is recorded: {describe_error(error)}. Training "
            "continues, and the rest is sent when it does."
        )
