import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest

from surestep.base.errors import Preempted
from surestep.base.noted_signals import NotedSignals
from surestep.engine.distributed import stop_signals
from surestep.engine.distributed.stop_signals import (
    StopSignals,
    check_stop,
    defer_stop,
    raise_stop,
)
from surestep.engine.step.gc import import_without_collecting

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def stop(name):
    raise_stop("Stopped by {name}.", name)


@pytest.fixture(autouse=True)
def handlers():
    """Check that each test leaves the handlers as they were."""
    before = [signal.getsignal(number) for number in NUMBERS]
    yield
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_innermost_acts_and_all_note_the_signal():
    with StopSignals(stop) as outer, StopSignals(lambda name: None) as inner:
        signal.raise_signal(signal.SIGTERM)
    assert (outer.received, inner.received) == (["SIGTERM"], ["SIGTERM"])


def test_only_the_first_signal_and_each_ctrl_c_count():
    came = []
    with StopSignals(came.append):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGINT):
            signal.raise_signal(number)
    assert came == ["SIGTERM", "Ctrl-C", "Ctrl-C"]


@pytest.mark.parametrize("block", [defer_stop, import_without_collecting])
def test_signal_in_an_import_is_acted_on_after_it(block):
    after = []
    for number, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Preempted)):

        def interrupted(number=number):
            with block():
                signal.raise_signal(number)
                signal.raise_signal(signal.SIGINT)
                after.append(number)

        with StopSignals(stop), pytest.raises(error):
            interrupted()
    assert after == [signal.SIGINT, signal.SIGTERM]


def test_signal_whose_error_was_caught_is_raised_again():
    with StopSignals(stop):
        with pytest.raises(Preempted):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Preempted, match="SIGTERM"):
            check_stop()


def test_handlers_of_the_host_program_stay():
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append("own"))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(came.append):
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGHUP)
            later = signal.signal(signal.SIGTERM, lambda *_: came.append("later"))
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGHUP, ignored)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert came == ["own", "later", "later"]
    assert later is not signal.SIG_DFL


@pytest.mark.parametrize("number", NUMBERS)
def test_signal_that_the_host_program_ignores_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopSignals(stop) as signals:
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert signals.received == []


@pytest.mark.parametrize("start", [nullcontext, NotedSignals])  # the second as a command does
def test_forked_process_ends_by_a_signal_as_usual(start):
    with start(), StopSignals(lambda name: None):
        pid = os.fork()
        if pid == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_threads_open_nothing_and_can_close():
    came = []
    signals = StopSignals(came.append).open()
    for act in (StopSignals(stop).open, signals.close):
        thread = threading.Thread(target=act)
        thread.start()
        thread.join()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert came == []


def be_rank(write, act):
    """Be a rank whose launcher was killed while it waits; write how it ends."""

    def fail(*_):
        os.write(write, b"was not ended")
        os._exit(1)

    signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    try:
        with StopSignals(act):
            os.write(write, b"waits ")
            while True:
                signal.pause()
    except Preempted as stopped:
        os.write(write, str(stopped).encode())
    finally:
        os._exit(75)


@pytest.mark.parametrize(
    ("act", "end"),
    [(stop, b"Stopped by SIGTERM."), (lambda name: None, b"")],  # the second cannot act
)
def test_rank_ends_when_its_launcher_is_killed(monkeypatch, act, end):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setattr(stop_signals, "_POLL_S", 0.01)
    monkeypatch.setattr(stop_signals, "_AT_MOST_S", 600.0 if end else 0.01)
    read, write = os.pipe()
    if (launcher := os.fork()) == 0:
        if os.fork() == 0:
            be_rank(write, act)
        signal.pause()
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read(6) == b"waits "
        os.kill(launcher, signal.SIGKILL)
        os.waitpid(launcher, 0)
        assert pipe.read() == end  # until the rank has ended


def test_rank_that_finishes_its_step_is_not_ended(monkeypatch):
    monkeypatch.setattr(stop_signals, "_POLL_S", 0.01)
    monkeypatch.setattr(stop_signals, "_AT_MOST_S", 0.01)
    monkeypatch.setattr(stop_signals, "has_agent", lambda: True)
    ids, late, asked = iter([1, 2]), threading.Event(), []

    class Finishes(StopSignals):
        finishes_step = property(lambda self: asked.append(1) or True, lambda self, value: None)

    def wait_until(holds):
        end = time.monotonic() + 60
        while not holds() and time.monotonic() < end:
            time.sleep(0.001)
        return holds()

    monkeypatch.setattr(os, "getppid", lambda: next(ids, 2))
    monkeypatch.setattr(os, "_exit", lambda code: late.set())
    with StopSignals(lambda name: None) as outer:
        with Finishes(lambda name: None) as signals:
            assert wait_until(lambda: signals.received == ["SIGTERM"])
            assert wait_until(lambda: len(asked) > 2)
            assert not late.is_set()
        assert late.wait(60)
    assert outer.received == ["SIGTERM"]
