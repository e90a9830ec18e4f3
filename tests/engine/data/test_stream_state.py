"""The state of a stream: detection, copies, when it is saved, and its checkpoint format."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from surestep.engine.data import stream_state as own_state
from surestep.engine.data.stream_state import (
    StreamCheckpoint,
    StreamStateTracker,
    WorkerProgress,
    copy_stream,
    has_state,
    parse_stream_checkpoint,
)


class Stream:
    def __init__(self):
        self.at, self.big, self.small = 0, [np.zeros(2**18)], {"seen": torch.zeros(4)}

    def __iter__(self):
        while self.at < 5:
            self.at += 1
            yield self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


MARK = StreamCheckpoint(1, 18, 9, 0, (WorkerProgress(9, 9, {"at": 9}), WorkerProgress(9, 0, None)))


def test_stream_has_a_state_only_if_it_is_an_object_with_both_methods():
    assert has_state(Stream())
    assert not has_state(Stream)
    assert not has_state(iter([]))


def test_copied_stream_shares_only_large_arrays():
    stream = Stream()
    found = copy_stream(stream)
    assert found is not stream
    assert found.big[0] is stream.big[0]
    assert found.small["seen"] is not stream.small["seen"]


def test_memory_map_of_a_stream_is_not_copied(tmp_path):
    stream = Stream()
    stream.big = np.memmap(tmp_path / "tokens", mode="w+", shape=2**21, dtype=np.uint8)
    assert copy_stream(stream).big is stream.big


def test_stream_without_a_state_is_not_copied():
    data = [1, 2]
    assert copy_stream(data) is data


def test_each_pass_starts_from_the_initial_or_restored_state():
    stream = Stream()
    assert [list(StreamStateTracker().start(stream, 0)) for _ in range(2)] == [[1, 2, 3, 4, 5]] * 2
    assert list(StreamStateTracker(WorkerProgress(3, 3, {"at": 3})).start(stream, 0)) == [4, 5]


def test_state_of_a_stream_comes_before_that_of_its_iterator():
    class Iterator(Stream):
        def __next__(self):
            if self.at == 5:
                raise StopIteration
            self.at += 1
            return self.at

        def __iter__(self):
            return self

    class Has(Stream):
        def __iter__(self):
            return Iterator()

    for stream, owner in ((Has(), Has), (lambda: iter(Iterator()), Iterator)):
        tracker = StreamStateTracker()
        assert list(tracker.start(stream, 0)) == [1, 2, 3, 4, 5]
        assert type(tracker.owner) is owner


def test_cheap_state_is_saved_each_time_and_an_expensive_one_rarely(monkeypatch):
    now, took = 0.0, own_state.CHEAP_S / 2

    class Slow(Stream):
        def state_dict(self):
            nonlocal now
            now += took
            return super().state_dict()

    monkeypatch.setattr(own_state, "time", SimpleNamespace(perf_counter=lambda: now))
    own = StreamStateTracker()
    next(own.start(Slow(), 0))
    assert all(own.maybe_state_dict() == {"at": 1} for _ in range(9))
    took *= 4
    assert all(own.maybe_state_dict() == {"at": 1} for _ in range(4))
    now += 0.99 * own_state.SHARE * took
    assert own.maybe_state_dict() is None
    now += 0.02 * own_state.SHARE * took
    assert own.maybe_state_dict() == {"at": 1}


def test_stream_checkpoint_counts_replayed_samples_and_round_trips():
    assert MARK.again == 9
    assert MARK._replace(parts=(WorkerProgress(9, 4), WorkerProgress(9, 3))).again == 11
    assert parse_stream_checkpoint(MARK.as_json()) == MARK


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"position": 1.5},
        {"last": 2},
        {"parts": [{"given": 9}, {"read": "x"}]},
        {"parts": 3},
        {"more": 1},
        {"size": True},
    ],
    ids=repr,
)
def test_malformed_stream_checkpoint_is_none(change):
    assert parse_stream_checkpoint(MARK.as_json() | change) is None


@pytest.mark.parametrize("saved", [{}, None, [], "x"], ids=repr)
def test_missing_stream_checkpoint_is_none(saved):
    assert parse_stream_checkpoint(saved) is None
