from types import SimpleNamespace

import pytest

from surestep.record.run import Run
from surestep.trainer.summary import ThroughputCounter
from tests import tiny


def point(first_step, items, seconds):
    return SimpleNamespace(first_step=first_step, items=items, seconds=seconds, data_wait_s=0.5)


@pytest.mark.parametrize("first", [1, 201])
def test_speed_counts_only_the_items_of_the_timed_steps(first):
    timed = ThroughputCounter()
    timed.on_log(None, point(first, 100.0, 2.0))
    timed.on_log(None, point(first + 10, 100.0, 3.0))
    assert timed.as_json() == {
        "since_step": first - 1,
        "seconds": 5.0,
        "data_wait_s": 1.0,
        "items_per_s": 40.0,
    }


@pytest.mark.parametrize(("limit", "clipped"), [(1e9, 0), (1e-9, 2), ("off", None)])
def test_summary_counts_skipped_and_clipped_steps(tmp_path, limit, clipped):
    """The second of three steps has no items."""
    x, y = tiny.data(24)
    y[8:16] = -100
    options = {"max_steps": 3, "data": {"shuffle": False}, "max_grad_norm": limit}
    with tiny.prepare(tmp_path, {"train": (x, y)}, **options) as session:
        list(session.steps())
        assert Run(tmp_path).status["status"] == "running"
    status = session.run.status
    names = ("step", "epoch", "steps_taken", "items", "no_items", "overflow", "clipped")
    assert [status[name] for name in names] == [3, 1, 2, 16, 1, 0, clipped]
    (end,) = [event for event in session.run.events() if event["event"] == "end"]
    assert {name: end[name] for name in names} == {name: status[name] for name in names}


def test_speed_is_none_without_timed_steps():
    assert ThroughputCounter().as_json()["items_per_s"] is None
