"""Threads of ranks wait for each other, but not for one that does not come when the run ends."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from surestep.base.errors import ParallelError
from surestep.engine.distributed import store_barrier as meetings
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.store_barrier import StoreBarrier
from surestep.engine.distributed.timeouts import GroupTimeouts


def meeting(store, rank, ends=lambda: False, pulse=lambda rank: time.monotonic()):
    patience = GroupTimeouts(0.2, 0.2)
    return StoreBarrier(store, rank=rank, size=2, patience=patience, ends=ends, pulse=pulse)


class Clock:
    """Goes on while somebody sleeps, and not while a busy machine does something else."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(meetings, "time", clock := Clock())
    return clock


def test_who_comes_first_waits_for_the_others_each_time():
    store, came = HashStore(), []

    def first():
        meets = meeting(store, 0)
        for _ in range(3):
            meets.wait()
            came.append(time.monotonic())

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first)
        late = meeting(store, 1)
        for count in range(3):
            time.sleep(0.05)
            assert len(came) == count
            late.wait()
            while len(came) == count:
                time.sleep(0.001)
        done.result()


def test_where_the_run_ends_nobody_waits_for_a_rank_that_does_not_come(clock):
    world = Communicator(0, 2)
    alone = meeting(HashStore(), 0, ends=lambda: world.is_failing)
    world.failed(ValueError("here"))
    with pytest.raises(ParallelError, match=r"waited in vain for ranks \[1\]"):
        alone.wait()
    with pytest.raises(ParallelError):  # the time is for all that is still to be written
        alone.wait()
    assert 0.1 <= clock.now < 0.2


def test_a_rank_that_gives_no_sign_of_life_is_not_waited_for(monkeypatch, clock):
    monkeypatch.setattr(meetings, "_PULSE_S", 0.01)
    with pytest.raises(ParallelError, match=r"Rank 0 hears nothing of ranks \[1\] any more"):
        meeting(HashStore(), 0, pulse=lambda rank: "the same").wait()
    assert 0.1 <= clock.now < 0.2


def test_who_comes_when_the_others_gave_up_gives_up_too_and_they_meet_again_at_the_next_place():
    store, over = HashStore(), [True]
    first, late = meeting(store, 0, ends=lambda: over[0]), meeting(store, 1)
    with pytest.raises(ParallelError, match="waited in vain"):
        first.wait()
    with pytest.raises(ParallelError, match="Another rank gave up"):
        late.wait()
    over[0], first._end = False, None
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(first.wait)
        late.wait()
        done.result()


def test_what_is_written_beside_meets_first_and_training_does_not():
    def never():
        raise ParallelError("not all came")

    world = Communicator(0, 2)
    world.store_barrier = never
    with pytest.raises(ParallelError), world.background.explain_errors():
        pass
    with world.explain_errors():
        pass
