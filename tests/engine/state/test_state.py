import math

import numpy as np
import pytest
import torch

from surestep.base.errors import TaskError
from surestep.engine.state.state import WHOLE, BestMetric, StepCounts, copied_options
from tests import tiny


@pytest.mark.parametrize(
    ("mode", "values", "best"), [("min", [3, 1, 2], (1, 2)), ("max", [1, 3, 2], (3, 2))]
)
def test_best_metric_is_stored_with_its_step(mode, values, best):
    standing = BestMetric()
    found = [
        standing.update(value, step, mode=mode, delta=0.0) for step, value in enumerate(values, 1)
    ]
    assert found == [True, True, False]
    assert (standing.best, standing.best_step, standing.since_best) == (*best, 1)


def test_first_of_equal_values_is_best():
    standing = BestMetric()
    assert [standing.update(1.0, step, mode="min", delta=0.0) for step in (1, 2)] == [True, False]


def test_improvement_must_exceed_delta():
    standing = BestMetric()
    values = [1.0, 0.95, 0.9, 0.8]
    assert [standing.update(v, 1, mode="min", delta=0.1) for v in values] == [
        *(True, False, False, True)
    ]


def test_evaluation_that_does_not_count_leaves_the_patience():
    standing = BestMetric(best=1.0, best_step=1, since_best=2)
    assert not standing.update(2.0, 5, mode="min", delta=0.0, counts=False)
    assert standing == BestMetric(best=1.0, best_step=1, since_best=2)


def test_values_of_other_samples_are_forgotten():
    best = BestMetric(metric="val/loss", best=0.5, best_step=3, since_best=2, latest_step=5)
    best.latest = {"val/loss": 0.6}
    assert not best.measure_on("a")  # it was not known
    assert not best.measure_on(None)
    assert best.best == 0.5
    assert best.measure_on("b")
    assert best == BestMetric(metric="val/loss", data="b")


def test_nan_is_never_best():
    standing = BestMetric()
    assert not standing.update(math.nan, 1, mode="min", delta=0.0)
    assert (standing.best, standing.since_best) == (None, 1)
    assert standing.update(5.0, 2, mode="min", delta=0.0)
    assert not standing.update(math.nan, 3, mode="max", delta=0.0)


def test_skipped_steps_are_counted_by_reason():
    assert StepCounts(1, nonfinite=2, no_items=4, after_spike=8, clipped=16).skipped == 15


def test_single_optimizer_needs_no_name():
    state = tiny.state_of()
    assert state.optimizer is state.optimizers[WHOLE]


def test_optimizer_attribute_is_rejected_with_several_optimizers():
    state = tiny.state_of()
    state.optimizers["critic"] = tiny.fused_adamw(tiny.model().parameters())
    with pytest.raises(
        TaskError, match=r"several: model, critic\. .* state\.optimizers\['model'\]"
    ):
        _ = state.optimizer


def test_options_that_an_optimizer_changes_in_place_are_copied():
    group = {"params": [], "d": torch.ones(2), "history": [[1]], "array": np.ones(1), "lr": 0.1}
    copied = copied_options(group)
    group["d"] += 1
    group["history"][0].append(2)
    group["array"] += 1
    assert copied.keys() == group.keys() - {"params"}
    assert copied["d"].tolist() == [1, 1]
    assert (copied["history"], copied["array"].tolist()) == ([[1]], [1])
