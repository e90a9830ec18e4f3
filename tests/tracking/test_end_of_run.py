"""The end of a run waits for a tracker as long as it takes records, and says what is missing."""

import signal
import threading
import time

import pytest

import surestep
from surestep.record import final_wait
from surestep.tracking import follower
from surestep.tracking.follower import Delivery
from tests.tracking.test_delivery import Recorder, expected_points, losses, train

QUIET = {"logging.progress": "quiet"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(follower, "INTERVAL_S", 0.01)
    monkeypatch.setattr(follower, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(final_wait, "_SILENT_S", 0.0)
    Slow.is_over, finish = threading.Event(), follower.Follower.finish

    def end(self):
        Slow.is_over.set()
        finish(self)

    monkeypatch.setattr(follower.Follower, "finish", end)


class Slow(Recorder):
    """Takes a while for each call, and takes no points before the run has ended."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def _call(self, name, given):
        if name == "log":
            assert self.is_over.wait(60)
            time.sleep(self.seconds)
        return super()._call(name, given)


def notices(run):
    return [event["text"] for event in run.events() if event["event"] == "notice"]


def test_run_waits_for_a_tracker_that_is_slow_but_takes_records(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(follower, "STALLED_S", 0.01)
    monkeypatch.setattr(follower, "BATCH", 1)  # so that each point is a call
    slow = Slow(0.03)
    run = train(tmp_path, slow)
    assert losses(slow) == expected_points(run)
    assert "Sending the rest to recorder: " in capfd.readouterr().err
    assert "trackers" not in run.status


def test_tracker_that_recovers_while_the_run_waits_misses_nothing(tmp_path):
    class Away(Recorder):
        def _call(self, name, given):
            if name == "start" and time.monotonic() < self.back:
                raise ConnectionError("the server is away")
            return super()._call(name, given)

    away = Away()
    away.back = time.monotonic() + 0.5
    run = train(tmp_path, away, **QUIET)
    assert losses(away) == expected_points(run)
    first, last = notices(run)
    assert "the server is away" in first
    assert last == "recorder has got what it had missed."
    assert "trackers" not in run.status
    assert Delivery(tmp_path, Recorder()).describe_rest() is None


def test_wait_ends_at_the_limit_of_the_option(tmp_path):
    run = train(tmp_path, Slow(0.1), **QUIET, **{"logging.tracker_wait": "0.05 seconds"})
    assert run.status["status"] == "finished"
    ((name, text),) = run.status["trackers"].items()
    assert name == "recorder"
    assert text.startswith("recorder lacks ")
    assert "points of steps " in text
    assert ", the end of the run. To send the rest, in Python, " in text
    assert notices(run)[-1] == text
    late = Recorder()
    Delivery(tmp_path, late).deliver()
    assert late.of("end")


@pytest.mark.parametrize("wait", [None, "off", 0])
def test_run_does_not_wait_if_the_option_is_off(tmp_path, wait):
    released = threading.Event()

    class Stuck(Recorder):
        def _call(self, name, given):
            released.wait(60)

    run = train(tmp_path, Stuck(), **QUIET, **{"logging.tracker_wait": wait})
    assert run.config["config"]["logging.tracker_wait"] is None
    assert "recorder lacks " in run.status["trackers"]["recorder"]
    released.set()


def test_tracker_that_always_fails_at_the_same_call_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "STALLED_S", 0.2)
    run = train(tmp_path, Recorder(checkpoint=10**9), **QUIET)  # it answers those before
    assert "recorder lacks " in run.status["trackers"]["recorder"]


def test_ctrl_c_ends_the_wait_and_the_results_are_returned(tmp_path):
    main, released = threading.main_thread().ident, threading.Event()

    class Interrupting(Slow):
        def findings(self, findings):
            signal.pthread_kill(main, signal.SIGINT)
            released.wait(60)

        def __getattribute__(self, name):
            own = ("findings",)
            return (
                object.__getattribute__(self, name)
                if name in own
                else super().__getattribute__(name)
            )

    run = train(tmp_path, Interrupting(0.0), **QUIET)
    released.set()
    assert run.status["status"] == "finished"
    assert "the end of the run" in run.status["trackers"]["recorder"]


def test_unreachable_tracker_is_recorded_although_nothing_is_printed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(follower, "STALLED_S", 0.1)
    run = train(tmp_path, Recorder(start=10**9), **QUIET)
    assert capfd.readouterr().err == ""
    first, last = notices(run)
    assert "recorder does not take what is recorded: ConnectionError" in first
    assert run.status["trackers"] == {"recorder": last}
    assert "lacks" in last


def test_trackers_are_waited_for_together(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "STALLED_S", 0.1)
    calls = []

    def record(name):
        method = getattr(follower.Follower, name)
        monkeypatch.setattr(
            follower.Follower, name, lambda self: (calls.append(name), method(self))[1]
        )

    record("finish")
    record("give_up")

    class Other(Recorder):
        name = "other"

    run = train(tmp_path, Recorder(start=10**9), Other(start=10**9), **QUIET)
    assert calls == ["finish", "finish", "give_up", "give_up"]
    assert len([text for text in notices(run) if " lacks " in text]) == 2


def test_tracker_that_hangs_is_reported_while_the_run_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "HANGING_S", 0.02)
    begun, released = threading.Event(), threading.Event()

    class Hanging(Recorder):
        def _call(self, name, given):
            if name == "start":
                begun.set()
                released.wait(60)
            return super()._call(name, given)

    class Release(surestep.Callback):
        def on_log(self, state, point):
            if state.progress.step > 1 and notices(surestep.Run(tmp_path)):
                released.set()
            assert begun.wait(60)
            time.sleep(0.03)  # longer than HANGING_S

    tracker = Hanging()
    run = train(tmp_path, tracker, callbacks=[Release()], **QUIET, **{"logging.every": "1 steps"})
    first, last = notices(run)
    assert first.startswith("recorder has not answered for ")
    assert last == "recorder has got what it had missed."
    assert losses(tracker) == expected_points(run)
