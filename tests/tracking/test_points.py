"""Points: the values that a tracker gets from an event."""

from surestep.tracking.points import numbers_of, read_points

EVENT = {
    **{"event": "steps", "time": 5.0, "first": 4, "loss": [1.0, 3.0], "grad_norm": [2.0, None]},
    **{"lr": [0.1, 0.2], "epoch": 1, "items": 8.0, "samples": 4, "seconds": 2.0},
    **{"data_wait_s": 0.5, "peak_memory": 100},
}
EXPECTED = {
    **{"train/loss": 2.0, "grad_norm": 2.0, "lr": 0.2, "epoch": 1.0, "memory/peak": 100},
    **{"throughput/items_per_s": 4.0, "throughput/samples_per_s": 2.0},
    "time/data_wait_share": 0.25,
}


def layers(step):
    return {
        "layers": {
            "step": step,
            "grad_norm": {"0": "inf"},
            "weight_norm": {"0": 2.0, "": 1.0},
            "update_norm": {"0": 0.5},
        }
    }


def test_log_point_has_the_means_of_its_steps():
    (point,) = read_points(EVENT)
    assert (point.step, point.time) == (5, 5.0)
    assert point.values == EXPECTED
    (logged,) = read_points(EVENT | {"logged": {"loss": [1.0, None], "kl": [2.0, 4.0]}})
    assert logged.values == EXPECTED | {"train/logged_loss": 1.0, "train/kl": 3.0}
    (grouped,) = read_points(EVENT | {"group_lr": {"head": 0.3}, "peak_memory": None, "seconds": 0})
    left = {name: value for name, value in EXPECTED.items() if "/" not in name}
    assert grouped.values == left | {"train/loss": 2.0, "lr/head": 0.3}
    assert not list(read_points(EVENT | {"loss": []}))


def test_norms_of_layers_are_part_of_the_point_of_their_step():
    (point,) = read_points(EVENT | layers(5))
    assert point.values["train/loss"] == 2.0
    assert point.values["grad_norm/0"] == float("inf")
    assert point.values["weight_norm/0"] == 2.0
    assert point.values["update_norm/0"] == 0.5


def test_norms_of_an_earlier_step_have_their_own_point():
    first, second = read_points(EVENT | layers(4))
    assert (first.step, first.values["update_norm/0"]) == (4, 0.5)
    assert second.step == 5
    assert second.values == EXPECTED


def test_metrics_that_are_no_numbers_are_left_out():
    metrics = {"loss": "nan", "accuracy": 0.5, "confusion": [[1, 2], [3, 4]], "unknown": None}
    assert set(numbers_of(metrics)) == {"loss", "accuracy"}
