from types import SimpleNamespace

from surestep.trainer.summary import ThroughputCounter


def point(first_step, items, seconds):
    return SimpleNamespace(first_step=first_step, items=items, seconds=seconds, data_wait_s=0.5)


def test_speed_counts_only_the_items_of_the_timed_steps():
    timed = ThroughputCounter()
    timed.on_log(None, point(201, 100.0, 2.0))
    timed.on_log(None, point(211, 100.0, 3.0))
    assert timed.as_json() == {
        "since_step": 200,
        "seconds": 5.0,
        "data_wait_s": 1.0,
        "items_per_s": 40.0,
    }


def test_speed_is_none_without_timed_steps():
    assert ThroughputCounter().as_json()["items_per_s"] is None
