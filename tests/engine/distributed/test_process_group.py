"""Process group setup with a shared key prefix, and barriers through the store."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, Store, TCPStore

from surestep.base.errors import ParallelError
from surestep.engine.distributed import process_group
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.hang_monitor import GroupTimeouts
from surestep.engine.distributed.launcher_env import ALONE, LaunchInfo
from surestep.engine.distributed.process_group import (
    StoreBarrier,
    agree_on_prefix,
    connect_separately,
    join_process_group,
)


def start(store, size, timeout_s=60.0):
    """Run one thread per rank until they agree; return the prefix of each."""

    def one(rank):
        return agree_on_prefix(store, LaunchInfo(rank=rank, size=size), timeout_s)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def test_all_ranks_of_a_launch_share_a_prefix_unique_to_that_launch():
    store = HashStore()
    prefixes = [start(store, size) for size in (3, 3, 2, 4)]
    assert all(len(set(each)) == 1 for each in prefixes)
    assert len({each[0] for each in prefixes}) == len(prefixes)


def test_key_of_a_dead_process_does_not_count_as_a_rank():
    store = HashStore()
    store.set("hello/1", "of a process that died")
    with pytest.raises(TimeoutError, match=r"ranks \[1\] did not arrive"):
        agree_on_prefix(store, LaunchInfo(rank=0, size=2), 0.2)
    assert len(set(start(store, 2))) == 1


def test_rank_0_reports_once_which_ranks_have_not_arrived(capsys):
    launched = LaunchInfo(rank=0, size=6, local_size=2)
    with pytest.raises(TimeoutError):
        agree_on_prefix(HashStore(), launched, 0.3, report_s=0.05)
    reported = capsys.readouterr().err
    assert reported.count("\n") == 1
    assert reported.startswith("Rank 0 has waited 0.05 s for ranks 1-5 of 6 (nodes 0-2)")


def test_rank_times_out_if_rank_0_does_not_arrive():
    with pytest.raises(TimeoutError, match="rank 0 did not arrive"):
        agree_on_prefix(HashStore(), LaunchInfo(rank=1, size=2), 0.1)


def test_port_that_is_in_use_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        launched = LaunchInfo(rank=0, size=2, address="127.0.0.1", port=taken.getsockname()[1])
        cannot = rf"cannot listen at 127\.0\.0\.1:{launched.port}: another process uses this port"
        with (
            pytest.raises(ParallelError, match=cannot),
            join_process_group(launched, backend="gloo", timeouts=GroupTimeouts(1800, 1800)),
        ):
            pass


def test_error_of_a_start_says_how_long_it_took(monkeypatch):
    def lose_connection(*_, **__):
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr(process_group, "TCPStore", lose_connection)
    waited = r"Rank 1 of 2 waited 0\.0 s at .*: Connection reset by peer"
    with (
        pytest.raises(ParallelError, match=waited),
        join_process_group(
            LaunchInfo(rank=1, size=2), backend="gloo", timeouts=GroupTimeouts(1800, 1800)
        ),
    ):
        pass


def test_single_process_does_not_open_a_process_group():
    with join_process_group(ALONE, backend="gloo", timeouts=GroupTimeouts(1.0, 1.0)) as world:
        assert world.size == 1


def barrier(
    store,
    world,
    start_s=0.2,
    later_s=0.2,
    pulse=lambda _: object(),
    has_ended=lambda _: False,
):
    timeouts = GroupTimeouts(start_s, later_s)
    return StoreBarrier(store, world, timeouts, pulse=pulse, has_ended=has_ended)


class Clock:
    """Advances only while a thread sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(process_group, "time", clock := Clock())
    return clock


def test_rank_0_waits_for_the_others_at_each_barrier():
    store, arrived = HashStore(), []

    def first():
        waits = barrier(store, Communicator(0, 2), start_s=60.0)
        for _ in range(3):
            waits.wait()
            arrived.append(time.monotonic())

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first)
        late = barrier(store, Communicator(1, 2), start_s=60.0)
        for count in range(3):
            time.sleep(0.05)
            assert len(arrived) == count
            late.wait()
            while len(arrived) == count:
                time.sleep(0.001)
        done.result()


def test_failing_run_waits_only_briefly_for_a_missing_rank(clock):
    world = Communicator(0, 2)
    alone = barrier(HashStore(), world)
    world.failed(ValueError("here"))
    with pytest.raises(ParallelError, match=r"timed out waiting for ranks \[1\]"):
        alone.wait()
    with pytest.raises(ParallelError):  # the limit is shared by all waits
        alone.wait()
    assert 0.1 <= clock.now < 0.2


def test_barrier_waits_for_a_missing_rank_until_the_timeout(clock):
    with pytest.raises(ParallelError, match=r"Rank 0 timed out waiting for ranks \[1\]"):
        barrier(HashStore(), Communicator(0, 2), start_s=3.0).wait()
    assert 3.0 <= clock.now < 3.1


def test_barrier_times_out_early_if_a_rank_is_dead(monkeypatch, clock):
    monkeypatch.setattr(process_group, "_PULSE_S", 0.01)
    with pytest.raises(ParallelError, match=r"timed out waiting for ranks \[1\]"):
        barrier(HashStore(), Communicator(0, 2), start_s=3.0, pulse=lambda _: "the same").wait()
    assert 1.5 <= clock.now < 1.6


def test_barrier_does_not_wait_for_a_process_that_has_ended(clock):
    with pytest.raises(ParallelError, match=r"lost a process while waiting for ranks \[1\]"):
        barrier(HashStore(), Communicator(0, 2), start_s=60.0, has_ended=lambda _: True).wait()
    assert clock.now < 1


def test_late_rank_gives_up_too_and_all_pass_the_next_barrier(monkeypatch):
    store, failing = HashStore(), SimpleNamespace(rank=0, size=2, is_failing=True)
    first, late = (barrier(store, rank, 60.0, 60.0) for rank in (failing, Communicator(1, 2)))
    with monkeypatch.context() as patch:
        patch.setattr(process_group, "time", Clock())
        with pytest.raises(ParallelError, match="timed out waiting"):
            first.wait()
    with pytest.raises(ParallelError, match="Another rank stopped waiting"):
        late.wait()
    failing.is_failing, first._end = False, None
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first.wait)
        late.wait()
        done.result()


def test_only_the_background_thread_waits_at_the_barrier():
    def never():
        raise ParallelError("not all arrived")

    world = Communicator(0, 2)
    world.store_barrier = never
    with pytest.raises(ParallelError), world.background.explain_errors():
        pass
    with world.explain_errors():
        pass


@pytest.mark.parametrize("can_clone", [True, False], ids=["clone", "no clone"])
@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_ranks_share_what_they_store_over_separate_connections(
    monkeypatch, tmp_path, can_clone, kind
):
    if not can_clone:
        monkeypatch.delattr(Store, "clone", raising=False)
    elif not hasattr(Store, "clone"):
        pytest.skip("this torch cannot clone a store")
    file = str(tmp_path / "store")
    first = TCPStore("127.0.0.1", 0, is_master=True) if kind == "tcp" else FileStore(file, 2)
    other = TCPStore("127.0.0.1", first.port) if kind == "tcp" else FileStore(file, 2)
    ranks = [PrefixStore("of torch", PrefixStore("x", store)) for store in (first, other)]
    ours = [connect_separately(store, 1) for store in ranks]
    another = connect_separately(ranks[0], 2)
    ours[0]().set("key", "value")
    assert ours[1]().get("key") == b"value"
    assert can_clone or not another().check(["key"])
    assert can_clone or kind == "file" or ours[0]().underlying_store is not first
