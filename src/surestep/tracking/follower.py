"""Send the events of a run to a tracker, in a thread that reads the run folder.

The events are the queue: however slow or broken a tracker is, training only appends to a file. What
was delivered is recorded as a byte offset in `trackers/NAME.json`, from which a restart continues.
"""

import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from surestep.base.errors import RunError
from surestep.base.secrets import describe_error
from surestep.base.text import format_count
from surestep.config.groups import tracker_names
from surestep.record.checkpoint.discovery import checkpoint_name
from surestep.record.events import read_new_events
from surestep.record.final_wait import Sent, wait_until_sent
from surestep.record.io import read_json, write_json
from surestep.record.schemas import CONFIG, ENVIRONMENT, PLAN, TRACKER, UNDOING
from surestep.tracking.points import numbers_of, read_histograms, read_points
from surestep.tracking.tracker import Point, TrackedRun, Tracker

if TYPE_CHECKING:
    from torch import nn

    from surestep.record.progress_display import NullProgress

INTERVAL_S = 5.0  # between two reads of the events: a request costs the same for more values
LONGEST_PAUSE_S = 30.0  # between two attempts to reach a tracker
STALLED_S = 20.0  # at the end of a run: how long to wait for a tracker that fails
HANGING_S = 90.0  # for a call of a tracker; a request of MLflow fails after 62 s
UPLOAD_S = 600.0  # for a call that sends files
BATCH = 100  # events that are sent, and recorded as delivered, at once

_UPLOADS = ("checkpoint", "end", "close")
_CALLED = ("histograms", "checkpoint", "resume", "branch", "end")  # events that are not points


def describe_replay(run: Path, tracker: str, *, from_start: bool = False) -> str:
    """Return what to type to send what a tracker lacks.

    The command line finds the class of a tracker by its name, or in the recipe of the run.
    """
    what = "everything again" if from_start else "the rest"
    has_class = tracker in tracker_names() or read_json(run / "config.json", CONFIG)["recipe"]
    if has_class:
        command = f"surestep track replay {shlex.quote(str(run))} --to {tracker}"
        return f"To send {what}: {command}{' --all' if from_start else ''}"
    option = ", from_start=True" if from_start else ""
    return (
        f"To send {what}, in Python, with a new object of the tracker: "
        f"from surestep.tracking import replay_run; replay_run({str(run)!r}, tracker{option})"
    )


def describe_rest(events: Path, offset: int) -> str | None:
    """Return what a tracker has not got of the events from an offset on; None if it has all."""
    try:
        rest = [event for event, _ in read_new_events(events, offset)]
        steps = [point.step for event in rest for point in read_points(event)]
    except RunError:  # the command that sends the rest prints it
        return "events that cannot be read"
    counts = Counter(event["event"] for event in rest)
    if not counts.keys() - {"notice"}:
        return None
    points, checkpoints = len(steps), counts["checkpoint"]
    parts = [
        f"{format_count(points, 'point')} of steps {min(steps)} to {max(steps)}" if steps else "",
        format_count(checkpoints, "checkpoint") if checkpoints else "",
        "the end of the run" if counts["end"] else "",
    ]
    return ", ".join(filter(None, parts)) or "some events"


class Delivery:
    """Sends the events of a run to a tracker, from where the last delivery ended.

    Args:
        folder: of the run.
        tracker: gets them.
        from_start: send also what was delivered before.
        load_model: see `TrackedRun`.

    Attributes:
        offset: bytes of the events that were delivered.
        call: the method of the tracker that is being called, and since when; None if there is none.
        moved: when the delivery last got further than before; after a failure it begins again.
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
        self.call: tuple[str, float] | None = None
        self.moved = -math.inf
        self._calls, self._furthest = 0, (0, 0)  # since the offset; offset and calls
        record: dict[str, Any] = {"offset": 0, "state": {}}
        if self._record_path.exists():
            record = read_json(self._record_path, TRACKER)
        self._from_start = from_start
        self.offset: int = 0 if from_start else record["offset"]
        self._state: dict[str, Any] = record["state"]
        self._key: str | None = record.get("key")
        # A process that was killed did not close the tracker: it may have lost what it took last.
        self._must_close = not from_start and record.get("is_open", False)
        evaluated = () if from_start else record.get("evaluated", ())  # older versions write none
        # By step, since the last checkpoint.
        self._evaluated = {entry["step"]: numbers_of(entry["metrics"]) for entry in evaluated}

    @property
    def pending(self) -> bool:
        """Whether there are events that were not delivered."""
        return self._events.exists() and self._events.stat().st_size > self.offset

    def describe_rest(self) -> str | None:
        """Return what the tracker has not got; None if it has everything."""
        return describe_rest(self._events, self.offset) if self.pending else None

    def count_sent(self) -> Sent:
        """Return how many bytes of the events were delivered."""
        return Sent(self.offset, self._events.stat().st_size if self._events.exists() else 0)

    def deliver(self) -> None:
        """Send what is new; an exception of the tracker leaves the rest for the next call."""
        events, self._calls = read_new_events(self._events, self.offset), 0
        if self._must_close and not self._is_started:
            self._start()
        while batch := list(islice(events, BATCH)):
            if not self._is_started and any(event["event"] != "notice" for event, _ in batch):
                self._start()
            self._send(event for event, _ in batch)
            self.offset, self._calls = batch[-1][1], 0
            self._record()

    def close(self) -> None:
        """Disconnect the tracker, if it was started."""
        if self._is_started:
            self._is_started = False
            with self._calling("close"):
                self.tracker.close()
            self._must_close = False
            self._record()

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        """Note the method of the tracker that is called in the block, and when it returns."""
        self.call = method, time.monotonic()
        try:
            yield
            self._calls += 1
            if (self.offset, self._calls) > self._furthest:
                self._furthest, self.moved = (self.offset, self._calls), time.monotonic()
        finally:
            self.call = None

    def _start(self) -> None:
        if self._key is None:
            self._key = uuid4().hex
            self._record()  # before the tracker creates anything with it
        options = read_json(self.folder / "plan.json", PLAN)
        config = read_json(self.folder / "config.json", CONFIG)
        task = {**config.get("task_defaults", {}), **config["task"]}
        run = TrackedRun(
            path=self.folder,
            name=self.folder.resolve().name,
            options=options | {f"task.{name}": value for name, value in task.items()},
            environment=read_json(self.folder / "environment.json", ENVIRONMENT),
            key=self._key,
            state=self._state,
            from_start=self._from_start and not self.offset,
            delivered=self.offset,
            study=config.get("study"),
            load_model=self._load_model if self.tracker.uses_model else None,
        )
        with self._calling("start"):
            self._state = dict(self.tracker.start(run) or self._state)
        self._is_started = self._must_close = True
        self._record()

    def _send(self, events: Iterator[dict[str, Any]]) -> None:
        points: list[Point] = []
        for event in events:
            points += read_points(event)
            if event["event"] == "evaluation" and "which" not in event:
                self._evaluated.setdefault(event["step"], {}).update(numbers_of(event["metrics"]))
            if event["event"] in UNDOING:  # it undoes later steps
                kept = event["step"]
                self._evaluated = {at: m for at, m in self._evaluated.items() if at <= kept}
            if event["event"] in _CALLED:
                self._log(points)
                with self._calling(event["event"]):
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
            with self._calling("log"):
                self.tracker.log(tuple(points))
            points.clear()

    def is_hanging(self) -> bool:
        """Return whether a call of the tracker takes so long that it probably never returns."""
        if (call := self.call) is None:
            return False
        longest_s = UPLOAD_S if call[0] in _UPLOADS else HANGING_S
        return time.monotonic() - call[1] > longest_s

    def abandon(self) -> None:
        """Record nothing from now on: a call of the tracker may still return, at any time."""
        with self._lock:
            self._is_abandoned = True

    def _record(self) -> None:
        record = {
            "offset": self.offset,
            "state": self._state,
            "key": self._key,
            "is_open": self._must_close,
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

    Attributes:
        name: of the tracker.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.name = delivery.tracker.name
        self._closing = Event()
        self._gave_up = Event()
        self._message: str | None = None
        self._failures = 0
        self._is_away = False  # and it was reported
        self._ended = -math.inf
        name = f"surestep-{self.name}"
        self._thread = Thread(target=self._follow, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def notice(self) -> str | None:
        """Return a message about the tracker, each once."""
        if (call := self.delivery.call) and not self._is_away and self.delivery.is_hanging():
            self._is_away = True
            seconds = time.monotonic() - call[1]
            self._message = f"{self.name} has not answered for {seconds:.0f} s. {self._effect()}"
        message, self._message = self._message, None
        return message

    def finish(self) -> None:
        """Deliver what is left, and end: the run has ended."""
        self._ended = time.monotonic()
        self._closing.set()

    def wait(self, seconds: float) -> bool:
        """Wait for at most this long; return whether the thread has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def has_stalled(self) -> bool:
        """Return whether the tracker hangs, or fails and has taken nothing for STALLED_S."""
        if self.delivery.is_hanging():
            return True
        is_uploading = (call := self.delivery.call) is not None and call[0] in _UPLOADS
        if not self._failures or is_uploading:
            return False
        return time.monotonic() - max(self.delivery.moved, self._ended) > STALLED_S

    def count_sent(self) -> Sent:
        """Return how many bytes of the events were delivered."""
        return self.delivery.count_sent()

    def give_up(self) -> str | None:
        """Deliver nothing more; return what the tracker lacks, and the command that sends it."""
        self._gave_up.set()
        self.delivery.abandon()
        if (rest := self.delivery.describe_rest()) is not None:
            how = describe_replay(self.delivery.folder, self.name)
            return f"{self.name} lacks {rest}. {how}"
        if self._thread.is_alive():
            how = describe_replay(self.delivery.folder, self.name, from_start=True)
            return f"{self.name} got everything, but did not close. {how}"
        return None

    def _follow(self) -> None:
        pause, is_last = INTERVAL_S, False
        while not self._gave_up.is_set():
            is_last = self._closing.wait(pause)
            try:
                if self.delivery.pending:
                    self.delivery.deliver()
            except Exception as error:  # whatever the tracker's library raises
                pause = self._fail(error)
                with suppress(Exception):
                    self.delivery.close()
                if is_last:
                    self._gave_up.wait(min(pause, 1.0))
                continue
            pause, self._failures = INTERVAL_S, 0
            if self._is_away:
                self._is_away = False
                self._message = f"{self.name} has got what it had missed."
            if is_last and not self.delivery.pending:
                break
        with suppress(Exception):
            self.delivery.close()

    def _fail(self, error: Exception) -> float:
        """Report the first failure in a row; return how long to wait."""
        self._failures += 1
        if not self._is_away:
            self._is_away = True
            self._message = self._describe(error)
        return float(min(LONGEST_PAUSE_S, 2.0 ** min(self._failures, 5)))

    def _describe(self, error: Exception) -> str:
        return (
            f"{self.name} does not take what is recorded: {describe_error(error)}. {self._effect()}"
        )

    def _effect(self) -> str:
        if self._closing.is_set():
            return "It is tried again while the run waits at its end."
        return "Training continues, and the rest is sent when it does."


def finish_all(
    followers: Sequence[Follower],
    display: "NullProgress",
    *,
    limit_s: float,
    notify: Callable[[str], None],
) -> Mapping[str, str]:
    """Wait until the trackers have got all events of a run that has ended, with one bar.

    Args:
        followers: of the trackers.
        display: shows the bar.
        limit_s: the longest time to wait, in seconds.
        notify: prints and records a line.

    Returns:
        What each tracker lacks, and the command that sends it, by the name of the tracker.
    """

    def report() -> None:
        for follower in followers:
            if (message := follower.notice()) is not None:
                notify(message)

    try:
        wait_until_sent(followers, display, limit_s=limit_s, report=report)
    finally:
        lacking = {follower.name: follower.give_up() for follower in followers}
        texts = {name: text for name, text in lacking.items() if text is not None}
        for text in texts.values():
            notify(text)
    return texts
