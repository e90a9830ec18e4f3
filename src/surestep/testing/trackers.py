"""The tests that every tracker should pass."""

import json
import math
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from surestep.testing.runs import (
    Values,
    copy_run,
    expected_values,
    insert_events,
    read_lines,
    write_lines,
)
from surestep.tracking.follower import Delivery
from surestep.tracking.tracker import Tracker

_AWAY = "the service is away"


class TrackerSuite:
    """Tests of a tracker for pytest: derive a class, and override the methods of the tracker.

    Each test sends the records of a run to the tracker, in a thread, as a run does.

    Attributes:
        points: how many points `test_ten_thousand_points_arrive_in_time` sends.
        limit_s: the seconds that it may take.

    Example:
        >>> import surestep
        >>> from surestep.testing import TrackerSuite
        >>> class Memory(surestep.Tracker):
        ...     name = "memory"
        ...     values = []
        ...     def log(self, points):
        ...         for point in points:
        ...             self.values += [(point.step, *item) for item in point.values.items()]
        >>> class TestMemory(TrackerSuite):
        ...     def make_tracker(self):
        ...         return Memory()
        ...     def read_values(self, run):
        ...         return Memory.values
    """

    points = 10_000
    limit_s = 120.0

    def make_tracker(self) -> Tracker:
        """Return a new object of the tracker; override it."""
        raise NotImplementedError("Override make_tracker(): return a new object of your tracker.")

    def read_values(self, run: Path) -> Values | None:
        """Return (step, name, value) of all that was recorded for a run; override it if you can.

        Args:
            run: the run folder.

        Returns:
            The values in any order; None if they cannot be read back. They are then not compared.
        """
        return None

    def normalize_name(self, name: str) -> str:
        """Return a name as the service stores it; override it if some characters are replaced.

        Args:
            name: of a value, such as "val/accuracy".
        """
        return name

    def test_every_value_arrives_once(self, tmp_path: Path) -> None:
        """Send a finished run."""
        run = copy_run(tmp_path / "run")
        self._deliver(Delivery(run, self.make_tracker()))
        self._compare(run, Counter)

    def test_restarted_process_continues_where_the_last_one_ended(self, tmp_path: Path) -> None:
        """Send one half, and the other by a new object, which gets the state of the first."""
        run = copy_run(tmp_path / "run")
        lines = read_lines(run)
        write_lines(run, lines[: len(lines) // 2])
        self._deliver(Delivery(run, self.make_tracker()))
        write_lines(run, lines)
        self._deliver(Delivery(run, self.make_tracker()))
        self._compare(run, Counter)

    def test_value_that_is_sent_twice_is_no_error(self, tmp_path: Path) -> None:
        """Send everything again."""
        run = copy_run(tmp_path / "run")
        for from_start in (False, True):
            self._deliver(Delivery(run, self.make_tracker(), from_start=from_start))
        self._compare(run, set)

    def test_nothing_is_lost_after_an_exception(self, tmp_path: Path) -> None:
        """Let each method fail once after it was called; then the same object starts again."""
        run = copy_run(tmp_path / "run")
        tracker = self.make_tracker()
        methods = ["start", "log", "histograms", "checkpoint", "findings", "end"]
        for name in methods:
            _fail_once(tracker, name)
        delivery = Delivery(run, tracker)
        for _ in [*methods, "the last"]:
            error = self._deliver(delivery, fails=True)
            assert error is None or str(error) == _AWAY, f"the tracker raised {error!r}"
        assert not delivery.pending, "the tracker did not recover"
        self._compare(run, set)

    def test_state_is_json(self, tmp_path: Path) -> None:
        """Check what `start` returns."""
        run = copy_run(tmp_path / "run")
        tracker, states, start = self.make_tracker(), [], None
        start = tracker.start
        tracker.start = lambda run: states.append(start(run)) or states[-1]  # type: ignore[method-assign,func-returns-value]
        self._deliver(Delivery(run, tracker))
        for state in states:
            assert state is None or json.loads(json.dumps(dict(state))) == dict(state), (
                f"start() returned {state!r}: return a dict of text, numbers, lists and dicts"
            )

    def test_checkpoint_that_is_deleted_is_no_error(self, tmp_path: Path) -> None:
        """Delete all checkpoints before the tracker gets them."""
        run = copy_run(tmp_path / "run")
        shutil.rmtree(run / "checkpoints")
        self._deliver(Delivery(run, self.make_tracker()))
        self._compare(run, Counter)

    def test_nan_and_infinity_are_no_error(self, tmp_path: Path) -> None:
        """Send values that are not finite."""
        run = copy_run(tmp_path / "run")
        metrics = {"val/a": math.nan, "val/b": math.inf, "val/c": -math.inf, "val/d": 1e300}
        insert_events(
            run,
            [
                {"event": "steps", "first": 13, "loss": [math.nan], "grad_norm": [math.inf]},
                {"event": "evaluation", "step": 13, "metrics": metrics},
            ],
        )
        self._deliver(Delivery(run, self.make_tracker()))
        finite = [value for value in expected_values(run) if math.isfinite(value[2])]
        self._contains(run, [value for value in finite if abs(value[2]) < 1e30])

    def test_names_may_have_any_characters(self, tmp_path: Path) -> None:
        """Send names and a run folder with letters of several languages, spaces and signs."""
        run = copy_run(tmp_path / "größe 日本 100% #1")
        metrics = {
            "val/größe": 1.0,
            "val/日本語": 2.0,
            "val/f1@0.5 (macro), %": 3.0,
            "val/" + "x" * 200: 4.0,
        }
        insert_events(run, [{"event": "evaluation", "step": 13, "metrics": metrics}])
        self._deliver(Delivery(run, self.make_tracker()))
        found = self.read_values(run)
        if found is not None:
            sent = sorted(value for step, _, value in found if step == 13)
            assert sent == sorted(metrics.values()), f"of {metrics}, {sent} arrived"

    def test_ten_thousand_points_arrive_in_time(self, tmp_path: Path) -> None:
        """Send many log points."""
        run = copy_run(tmp_path / "run")
        steps = range(13, 13 + self.points)
        insert_events(run, ({"event": "steps", "first": step, "loss": [0.5]} for step in steps))
        began = time.monotonic()
        self._deliver(Delivery(run, self.make_tracker()))
        seconds = time.monotonic() - began
        assert seconds <= self.limit_s, f"{self.points} points took {seconds:.0f} s"
        last = [value for value in expected_values(run) if value[0] >= 3 + self.points]
        self._contains(run, last)

    def test_run_may_be_stopped_or_fail(self, tmp_path: Path) -> None:
        """Send the other two ways in which a run can end."""
        for status in ("stopped", "failed"):
            run = copy_run(tmp_path / status)
            *before, last = read_lines(run)
            end = {**json.loads(last), "status": status, "reason": "größer\nthan memory"}
            write_lines(run, [*before, json.dumps(end) + "\n"])
            self._deliver(Delivery(run, self.make_tracker()))
            self._compare(run, Counter)

    def test_nothing_is_printed_to_stdout(self, tmp_path: Path, capfd: Any) -> None:
        """Print nothing: the output of a command may be read by a program."""
        run = copy_run(tmp_path / "run")
        capfd.readouterr()
        self._deliver(Delivery(run, self.make_tracker()))
        printed = capfd.readouterr().out
        assert not printed, f"the tracker printed {printed[:300]!r}"

    def test_process_is_left_as_it_was(self, tmp_path: Path) -> None:
        """Leave random numbers, signal handlers, the working directory and threads alone."""
        run = copy_run(tmp_path / "run")
        before = _process()
        self._deliver(Delivery(run, self.make_tracker()))
        changed = [name for name, value in _process().items() if value != before[name]]
        assert not changed, f"the tracker changed the {', '.join(changed)} of this process"

    def _deliver(self, delivery: Delivery, *, fails: bool = False) -> Exception | None:
        """Send what is new in a thread, and close the tracker; return the error if it `fails`."""
        errors: list[Exception] = []

        def deliver() -> None:
            try:
                delivery.deliver()
            except Exception as error:  # raised below, in the thread of the test
                errors.append(error)
            try:
                delivery.close()
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=deliver, name="surestep-testing")
        thread.start()
        thread.join()
        if errors and not fails:
            raise errors[0]
        return errors[0] if errors else None

    def _compare(self, run: Path, collect: Any) -> None:
        """Compare what arrived with what was recorded, as a Counter or as a set."""
        found = self.read_values(run)
        if found is None:
            return
        sent = self._rounded(expected_values(run))
        arrived, sent = collect(self._rounded(found, stored=True)), collect(sent)
        assert arrived == sent, (
            f"{_examples(sent - arrived)} did not arrive; {_examples(arrived - sent)} arrived but "
            "should not, or more than once"
        )

    def _contains(self, run: Path, values: Values) -> None:
        found = self.read_values(run)
        if found is not None:
            lacking = set(self._rounded(values)) - set(self._rounded(found, stored=True))
            assert not lacking, f"{_examples(lacking)} did not arrive"

    def _rounded(self, values: Values, *, stored: bool = False) -> list[tuple[int, str, str]]:
        """Return the values to five digits: some services store fp32."""
        return [
            (step, name if stored else self.normalize_name(name), f"{value:.4e}")
            for step, name, value in values
        ]


def _fail_once(tracker: Tracker, name: str) -> None:
    method, calls = getattr(tracker, name), []

    def failing(*args: Any) -> Any:
        result = method(*args)
        calls.append(args)
        if len(calls) == 1:
            raise ConnectionError(_AWAY)
        return result

    setattr(tracker, name, failing)


def _process() -> dict[str, Any]:
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    return {
        "random numbers of Python": random.getstate(),
        "random numbers of numpy": str(np.random.get_state()),
        "random numbers of torch": torch.get_rng_state().tolist(),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "working directory": Path.cwd(),
        "threads that are not daemons": threads,
    }


def _examples(values: Iterable[Any]) -> str:
    found = list(values)
    return f"{found[:3]}{f' and {len(found) - 3} more' if len(found) > 3 else ''}"
