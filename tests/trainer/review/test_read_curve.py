"""The curve of a run is read from its events; what a resumed run repeats counts once."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from surestep.record.records import read_records
from surestep.trainer.review.read_curve import read_curve

LOSSES = {step: 1 / step for step in range(1, 31)}


def steps(first, last, scale=1.0):
    losses = [scale * LOSSES[step] for step in range(first, last + 1)]
    series = {"loss": losses, "grad_norm": losses, "lr": [0.1 * scale] * len(losses)}
    counts = {"epoch": 0, "items": 4, "samples": 4, "seconds": 1.0, "data_wait_s": 0.0}
    return {"event": "steps", "first": first, **series, **counts}


def evaluation(step, loss):
    return {
        "event": "evaluation",
        "step": step,
        "metrics": {"val/loss": loss},
        "measured": "weights",
    }


def read(tmp_path, *events, monitor=("val/loss", "min"), **config):
    config = {"config": {}, "decided": {}, **config}
    parts = {"path": tmp_path, "config": config, "monitor": monitor}
    timed = [{"time": float(at), **event} for at, event in enumerate(events)]
    return read_curve(SimpleNamespace(**parts), read_records(timed))


@pytest.mark.parametrize("event", ["resume", "restart", "rollback"])
@pytest.mark.parametrize("step", [10, 13, 20])
def test_steps_after_the_one_that_a_run_resumes_from_are_read_again(tmp_path, event, step):
    """The first process logged up to step 20; the checkpoint may be within a log point."""
    before = (steps(1, 10), evaluation(10, 5.0), steps(11, 20), evaluation(13, 4.0))
    undone = (evaluation(20, 3.0),)
    resumed = ({"event": event, "step": step}, steps(step + 1, 30, 2.0), evaluation(30, 2.0))
    curve = read(tmp_path, *before, *undone, *resumed)
    assert curve.steps.tolist() == list(range(1, 31))
    factors = [1.0] * step + [2.0] * (30 - step)
    expected = [loss * factor for loss, factor in zip(LOSSES.values(), factors, strict=True)]
    assert curve.losses.tolist() == pytest.approx(expected)
    assert curve.rates.tolist() == pytest.approx([0.1 * factor for factor in factors])
    evaluated = {10: 5.0, 13: 4.0, 20: 3.0}
    kept = {at: loss for at, loss in evaluated.items() if at <= step} | {30: 2.0}
    assert curve.evaluations.steps.tolist() == list(kept)
    assert curve.evaluations.losses.tolist() == list(kept.values())


def test_steps_that_are_repeated_without_an_event_count_once(tmp_path):
    curve = read(tmp_path, steps(1, 10), steps(8, 12, 2.0))
    assert curve.steps.tolist() == list(range(1, 13))
    assert curve.losses[6:8].tolist() == pytest.approx([LOSSES[7], 2 * LOSSES[8]])


def test_step_that_is_repeated_alone_counts_once(tmp_path):
    curve = read(tmp_path, steps(1, 10), steps(10, 10, 2.0))
    assert curve.steps.tolist() == list(range(1, 11))
    assert curve.losses[-1] == pytest.approx(2 * LOSSES[10])


def test_loss_of_a_step_without_items_is_not_zero(tmp_path):
    event = {**steps(1, 4), "loss": [1.0, None, "nan", 2.0]}
    np.testing.assert_array_equal(read(tmp_path, event).losses, [1.0, np.nan, np.nan, 2.0])


@pytest.mark.parametrize(
    ("events", "has_start"),
    [
        ([], True),
        ([steps(1, 3)], True),
        ([steps(2, 3)], False),
        ([{"event": "branch", "run": "a", "step": 0}, steps(1, 3)], False),
    ],
)
def test_start_is_known_if_the_run_has_its_first_step(tmp_path, events, has_start):
    assert read(tmp_path, *events).has_start is has_start


@pytest.mark.parametrize(("monitor", "split"), [(("near/loss", "min"), "near"), (None, "val")])
def test_scores_are_those_of_the_set_that_decides_the_best(tmp_path, monitor, split):
    """A score above 1 is of another kind; results of checkpoints are not of the curve."""
    values = {"loss": 2.0, "accuracy": 0.5, "top_F1": 0.25, "dice": 1.5, "count": 0.5}
    metrics = {f"{split}/{name}": value for name, value in values.items()}
    event = {**evaluation(3, 0.0), "metrics": {**metrics, "far/accuracy": 0.75, "far/loss": 3.0}}
    final = {"event": "evaluation", "step": 4, "metrics": metrics, "which": "best"}
    found = read(tmp_path, steps(1, 3), event, final, monitor=monitor).evaluations
    assert (found.steps.tolist(), found.losses.tolist()) == ([3], [2.0])
    assert {name: each.tolist() for name, each in found.scores.items()} == {
        **{"accuracy": [0.5], "top_F1": [0.25]}
    }


@pytest.mark.parametrize(
    ("loss", "shape", "classes"),
    [
        ({"called": "CrossEntropyLoss"}, [-1, 7], 7),
        ({"called": "multiclass(class_dim=1)", "class_dim": 1}, [-1, 7, 5], 7),
        ({"called": "multiclass(class_dim=-1)", "class_dim": -1}, [-1, 7, 5], 5),
        ({"called": "CrossEntropyLoss"}, [-1, 1], None),
        ({"called": "MSELoss"}, [-1, 7], None),
        ({"called": "binary()", "pos_weight": None}, [-1], 2),
        ({"called": "binary()", "pos_weight": "12ab"}, [-1], None),
    ],
)
def test_classes_are_those_of_the_output(tmp_path, loss, shape, classes):
    outputs = [{"name": "output", "dtype": "float32", "shape": shape}]
    (tmp_path / "signature.json").write_text(json.dumps({"inputs": [], "outputs": outputs}))
    assert read(tmp_path, steps(1, 3), loss=loss).classes == classes


@pytest.mark.parametrize(
    ("config", "is_regularized"),
    [
        ({"loss": {"label_smoothing": 0.0}, "modules": {"0": {"type": "Linear"}}}, False),
        ({"loss": {"label_smoothing": 0.1}}, True),
        ({"modules": {"0": {"type": "torch.nn.Dropout2d"}}}, True),
        ({"decided": {"batch_transform": "mixup"}}, True),
    ],
)
def test_training_that_is_harder_than_the_evaluation_is_known(tmp_path, config, is_regularized):
    assert read(tmp_path, steps(1, 3), **config).is_regularized is is_regularized


def test_steps_that_a_resumed_run_has_not_repeated_yet_are_left_out(tmp_path):
    curve = read(tmp_path, steps(1, 10), {"event": "resume", "step": 8})
    assert curve.steps.tolist() == list(range(1, 9))


def test_failed_step_is_forgotten_when_the_run_resumes(tmp_path):
    failed = (steps(1, 10), {"event": "incident", "step": 11})
    assert read(tmp_path, *failed).failed_at == 11
    assert read(tmp_path, *failed, {"event": "resume", "step": 8}).failed_at is None
