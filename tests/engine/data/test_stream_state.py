"""A stream's own state: whose it is, what is copied, when it is taken, what a checkpoint has."""

import time

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


def test_a_state_needs_both_methods_and_an_object():
    assert has_state(Stream())
    assert not has_state(Stream)
    assert not has_state(iter([]))


def test_a_copy_shares_large_arrays_and_nothing_else():
    stream = Stream()
    found = copy_stream(stream)
    assert found is not stream
    assert found.big[0] is stream.big[0]
    assert found.small["seen"] is not stream.small["seen"]


def test_a_memory_map_is_not_read_into_memory(tmp_path):
    stream = Stream()
    stream.big = np.memmap(tmp_path / "tokens", mode="w+", shape=2**21, dtype=np.uint8)
    assert copy_stream(stream).big is stream.big


def test_what_has_no_state_is_not_copied():
    data = [1, 2]
    assert copy_stream(data) is data


def test_each_pass_begins_with_the_stream_as_it_was_given():
    stream = Stream()
    assert [list(StreamStateTracker().start(stream, 0)) for _ in range(2)] == [[1, 2, 3, 4, 5]] * 2
    assert list(StreamStateTracker(WorkerProgress(3, 3, {"at": 3})).start(stream, 0)) == [4, 5]


def test_a_cheap_state_is_taken_each_time_and_a_dear_one_seldom(monkeypatch):
    own = StreamStateTracker()
    next(own.start(Stream(), 0))
    assert all(own.maybe_state_dict() == {"at": 1} for _ in range(9))
    monkeypatch.setattr(own_state, "CHEAP_S", 0.0)
    assert own.maybe_state_dict() == {"at": 1}
    assert own.maybe_state_dict() is None
    own._next_s = time.perf_counter()  # its time has come
    assert own.maybe_state_dict() == {"at": 1}


def test_a_mark_counts_what_is_read_again_and_comes_back():
    assert MARK.again == 9
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
def test_what_is_not_a_mark_is_none(change):
    assert parse_stream_checkpoint(MARK.as_json() | change) is None


@pytest.mark.parametrize("saved", [{}, None, [], "x"], ids=repr)
def test_no_mark_is_none(saved):
    assert parse_stream_checkpoint(saved) is None
