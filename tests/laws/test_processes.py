"""Functions in new processes: their values, errors, signals and time."""

import os
import signal
import time

import pytest
import torch

from surestep.base.errors import ConfigError
from surestep.laws.processes import (
    Call,
    Outcome,
    TimeIsOverError,
    call_in_processes,
    send_before_kill,
)


def reject():
    raise ConfigError("The batch is too small.")


def divide():
    return 1 / 0


def kill(value):
    send_before_kill(value)
    os.kill(os.getpid(), signal.SIGKILL)


def call(folder, *functions, at_once=2, seconds=60.0):
    calls = [Call(function, folder / str(n), args) for n, (function, *args) in enumerate(functions)]
    return call_in_processes(calls, at_once=at_once, end=time.monotonic() + seconds)


def test_outcomes_are_in_order_with_errors_and_signals(tmp_path):
    found = call(tmp_path, (pow, 2, 3), (reject,), (divide,), (kill, "known"), (os._exit, 3))
    assert found[0] == Outcome(8)
    assert found[1] == Outcome(error="The batch is too small.", kind="ConfigError")
    assert found[2].kind == "ZeroDivisionError"
    assert "test_processes.py:" in found[2].error
    assert found[3] == Outcome("known", signal=signal.SIGKILL)
    assert found[4].error == "the process ended with code 3 and no result"


def test_processes_have_one_thread_and_globals_of_their_own(tmp_path):
    counts = [0]

    def count():
        counts[0] += 1
        return counts[0], torch.get_num_threads()

    assert [one.value for one in call(tmp_path, (count,), (count,))] == [(1, 1), (1, 1)]
    assert counts == [0]


def test_process_that_takes_too_long_is_killed(tmp_path):
    started = time.monotonic()
    with pytest.raises(TimeIsOverError):
        call(tmp_path, (time.sleep, 60), seconds=0.1)
    assert time.monotonic() - started < 30


def test_group_ends_when_one_of_it_fails(tmp_path):
    started = time.monotonic()
    calls = [
        Call(time.sleep, tmp_path / "0", (60,)),
        Call(reject, tmp_path / "1"),
    ]
    found = call_in_processes(calls, at_once=2, end=started + 60, is_group=True)
    assert [one.kind for one in found] == ["ConfigError", "ConfigError"]
    assert time.monotonic() - started < 30
