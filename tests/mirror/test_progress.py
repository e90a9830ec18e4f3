"""What counts as progress of a mirror, and since when it has not answered."""

from types import SimpleNamespace

import pytest

from surestep.mirror import progress as module
from surestep.mirror.progress import Progress, TimedCalls


@pytest.fixture
def clock(monkeypatch):
    """The monotonic clock, which stands still unless a test moves it."""
    now = SimpleNamespace(at=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.at))
    return now


def attempt(progress, clock, *done, content="a"):
    """Begin an operation again a second later; return which of the counts were progress."""
    clock.at += 1
    note, found = progress.begin("upload w", content), []
    for count in done:
        clock.at += 1
        note(count)
        found.append(progress.at == clock.at)
    return found


def test_only_a_few_attempts_at_an_operation_count_from_the_start(clock):
    progress = Progress()
    for _ in range(3):
        assert attempt(progress, clock, 5, 5, 7) == [True, False, True]
    assert progress.done("upload w") == 7
    assert attempt(progress, clock, 5, 7, 8) == [False, False, True]
    assert attempt(progress, clock, 8, 9, content="b") == [True, True]  # of another file
    assert (progress.done("upload w"), progress.done("upload v")) == (9, 0)


def test_attempts_are_counted_again_after_a_restart(clock):
    progress, changes = Progress(), []
    progress.on_change = lambda: changes.append(clock.at)
    for _ in range(4):
        attempt(progress, clock, 5)
    assert len(changes) == 3
    clock.at += 1
    progress.restart()
    assert progress.at == clock.at
    assert progress.done("upload w") == 5
    assert attempt(progress, clock, 1) == [True]


def test_silence_is_that_of_the_oldest_call_since_the_last_progress(clock):
    progress = Progress()
    calls = TimedCalls(SimpleNamespace(), progress)
    clock.at += 50
    assert calls.silent_s() == 0
    with calls.waiting() as first:
        clock.at += 10
        with calls.waiting() as second:
            clock.at += 5
            assert [calls.silent_s(key) for key in (None, first, second)] == [15, 15, 5]
            progress.begin("upload w")(1)
            clock.at += 2
            assert [calls.silent_s(key) for key in (None, first, second)] == [2, 2, 2]
        clock.at += 1
        assert calls.silent_s() == 3
    assert calls.silent_s() == 0
