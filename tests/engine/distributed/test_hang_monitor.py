"""The threads of the hang monitor."""

import json
import subprocess
import threading
from contextlib import suppress
from dataclasses import asdict, replace

from torch.distributed import HashStore

from surestep.engine import private
from surestep.engine.distributed.hang_monitor import GroupTimeouts, HangMonitor, status_key
from surestep.engine.distributed.launcher_env import LaunchInfo


class SlowStore(HashStore):
    """A store whose answers take long, as over a busy network: until `answers` is set."""

    def __init__(self):
        super().__init__()
        self.is_slow = False
        self.is_called, self.answers = threading.Event(), threading.Event()

    def set(self, key, value):
        if self.is_slow and key.startswith("status/"):
            self.is_called.set()
            self.answers.wait(60)
        super().set(key, value)


def list_threads():
    return [thread for thread in threading.enumerate() if thread.name == "surestep-monitor"]


def test_stopped_monitor_leaves_no_thread_in_a_call_of_the_store(monkeypatch):
    """A thread that returns from C++ when Python has ended aborts the process."""
    join = threading.Thread.join

    def answer_and_join(self, timeout=None):
        store.answers.set()  # only now that it is waited for
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", answer_and_join)
    store = SlowStore()
    monitor = HangMonitor(
        LaunchInfo(), lambda: store, GroupTimeouts(1.0, 1.0), n_collectives=lambda: 0
    )
    monitor.publish()
    store.is_slow = True
    monitor.start()
    assert store.is_called.wait(60)
    monitor.stop()
    assert list_threads() == []


def test_groups_have_the_long_timeout_until_the_first_step_and_while_a_rank_writes(monkeypatch):
    seconds = {}

    def set_timeout(timeout, group):
        seconds[group] = timeout.total_seconds()

    def check(expected):
        assert timeouts.seconds == expected
        assert seconds == dict.fromkeys(timeouts.groups, expected)

    monkeypatch.setattr(private, "set_group_timeout", set_timeout)
    timeouts = GroupTimeouts(start_s=600.0, later_s=30.0)
    timeouts.groups = ("training", "background")
    with timeouts.long_timeout():  # before the first step is done
        check(600.0)
    check(600.0)
    timeouts.use_steady_timeout()
    check(30.0)
    with timeouts.long_timeout():
        with suppress(ValueError), timeouts.long_timeout():
            raise ValueError
        check(600.0)
    check(30.0)


def test_process_of_a_rank_has_ended_only_if_it_ran_on_this_machine():
    ended = subprocess.Popen(["true"])
    ended.wait()
    store, timeouts = HashStore(), GroupTimeouts(1.0, 1.0)
    monitor = HangMonitor(LaunchInfo(size=4), lambda: store, timeouts, n_collectives=lambda: 0)
    own = monitor.status()
    others = [replace(own, rank=1, pid=ended.pid), replace(own, rank=2, pid=ended.pid, machine="x")]
    for status in (own, *others, replace(own, rank=3)):
        store.set(status_key(status.rank), json.dumps(asdict(status)))
    monitor.start()
    assert [monitor.has_ended(rank) for rank in range(4)] == [False, True, False, False]
    monitor.stop()
