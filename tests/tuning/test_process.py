"""The process of a trial that hangs: it ignores SIGTERM and Ctrl-C, and sends no message."""

import json
import selectors
import socket
import stat
import subprocess
import time
from types import SimpleNamespace

import pytest

from surestep.tuning import background, process
from surestep.tuning.channel import Channel
from surestep.tuning.process import Limits, StopRequests, TrialProcess

IGNORES = "#!/bin/sh\ntrap '' TERM INT\n: >{ready}\nwhile :; do sleep 600; done\n"


@pytest.fixture
def hang(tmp_path, monkeypatch):
    """Return how a process ends that hangs, and after how many seconds of the test's clock."""
    shell, ready = tmp_path / "hangs", tmp_path / "ready"
    shell.write_text(IGNORES.format(ready=ready))
    shell.chmod(stat.S_IRWXU)
    now, killed, tick_s = [0.0], [], [0.25]
    kill_tree = process.kill_tree

    def monotonic():
        now[0] += tick_s[0]
        return now[0]

    def start(*args, **options):
        started = subprocess.Popen(*args, **options)
        while not ready.exists():  # a signal before the trap would end the shell
            time.sleep(0.002)
        return started

    def kill(pid):
        killed.append(now[0])
        kill_tree(pid)

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(process, "sys", SimpleNamespace(executable=str(shell)))
    popen = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(process, "subprocess", popen)
    monkeypatch.setattr(process, "kill_tree", kill)
    monkeypatch.setattr(process, "_POLL_S", 0.001)

    def run(*reasons, timeout_s=None, tick=0.25, **more):
        tick_s[0] = tick
        with StopRequests(timeout_s) as stops:
            for reason in reasons:
                stops.stop(reason)
            made = TrialProcess({}, tmp_path / "log", 1, {}, lambda _: False, stops, **more)
            return made.run(), killed[0]

    return run


@pytest.mark.parametrize(
    ("reasons", "least", "most"),
    [
        (["SIGTERM"], 5, 7),
        (["Ctrl-C", "SIGTERM"], 5, 7),
        (["Ctrl-C", "Ctrl-C"], 15, 17),
        (["Ctrl-C"], 60, 62),
        (["SIGUSR1"], 60, 62),
    ],
)
def test_trial_that_hangs_is_killed_after_a_signal_and_handed_back(hang, reasons, least, most):
    ended, killed_s = hang(*reasons)
    assert ended.stopped
    assert least <= killed_s <= most


def test_connections_that_stay_open_are_waited_for_together(tmp_path, monkeypatch):
    """A process that outlives its trial can hold the connection of each rank."""
    waits, limit_wait = [], Channel.limit_wait
    monkeypatch.setattr(process, "_LAST_MESSAGE_S", 0.2)
    monkeypatch.setattr(
        Channel, "limit_wait", lambda self, s: [waits.append(s), limit_wait(self, s)]
    )
    made = TrialProcess({}, tmp_path / "log", 3, {}, lambda _: False, stops=None)
    pairs = [socket.socketpair() for _ in range(made.nproc)]
    with socket.socket() as listener, selectors.DefaultSelector() as selector:
        for rank, (ours, theirs) in enumerate(pairs):
            selector.register(Channel(ours), selectors.EVENT_READ)
            theirs.sendall(json.dumps({"failed": f"rank {rank}"}).encode() + b"\n")
        made._close(selector, listener)
    for ours, theirs in pairs:
        assert ours.fileno() < 0
        theirs.close()
    assert made._failures == ["rank 0", "rank 1", "rank 2"]
    assert waits[0] > 0.0
    assert waits[-1] < 0.01


def test_waits_after_sigterm_add_up_to_ten_seconds():
    """A trial is killed, then its last messages are read; a worker in the background ends."""
    after_kill_s = max(process._LAST_MESSAGE_S, background._ENDS_S)
    assert process._SAVES_S["SIGTERM"] + after_kill_s <= 10


def test_trial_that_hangs_is_killed_after_the_timeout_of_the_search(hang):
    ended, killed_s = hang(timeout_s=30)
    assert ended.stopped
    assert 90 <= killed_s <= 93


@pytest.mark.parametrize("step_s", [None, 5000])
def test_trial_that_takes_no_step_is_reported_once_if_it_has_no_limit(hang, step_s):
    lines = []
    hang(timeout_s=1500, limits=Limits(step_s=step_s), warn=lines.append, tick=5.0)
    text = (
        "log has taken no step for 10 min 0 s. To fail a trial that hangs, run the same command "
        "with --step-timeout 30m."
    )
    assert lines == ([text] if step_s is None else [])


@pytest.mark.parametrize(
    ("limits", "spent_s", "reason", "least"),
    [
        (Limits(trial_s=600), 0, "took more than 10 min 0 s (--trial-timeout)", 605),
        (Limits(trial_s=600), 500, "took more than 10 min 0 s (--trial-timeout)", 105),
        (Limits(step_s=300), 500, "took no step for 5 min 0 s (--step-timeout)", 305),
        (Limits(600, 30), 0, "took no step for 30 s (--step-timeout)", 35),
    ],
)
def test_trial_that_exceeds_a_limit_fails_with_its_reason(hang, limits, spent_s, reason, least):
    ended, killed_s = hang(limits=limits, spent_s=spent_s, tick=5.0)
    assert (ended.stopped, ended.is_overdue) == (False, True)
    assert ended.reason == f"{reason} before its first step"
    assert least <= killed_s <= least + 60
