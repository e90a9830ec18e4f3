"""The average and the raw weights are evaluated side by side, and either can be the monitor."""

import copy

import pytest
import torch
from torch import nn

from surestep.base.errors import ConfigError, RunError
from tests import tiny

X, Y = tiny.data(30, seed=9)
EMA = {"kind": "ema", "decay": 0.9}


def options(weights, **more):
    validation = {"weights": weights, "every": "2 steps", **more}
    return {"max_steps": 6, "average": EMA, "validation": validation}


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def parts():
    return {"val": (X, Y), "metrics": {"accuracy": accuracy}}


def evaluations(run):
    return [each["metrics"] for each in run.events() if each["event"] == "evaluation"]


def loss_of(run, which):
    net = tiny.model()
    run.load_model(net, which=which)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(net.eval()(X), Y))


def test_metrics_of_both_weights_equal_those_of_each_alone(tmp_path):
    runs = {
        weights: tiny.fit(tmp_path / weights, parts(), **options(weights))
        for weights in ("average", "raw", "both")
    }
    found = {weights: evaluations(run) for weights, run in runs.items()}
    assert len(found["both"]) == 3
    for average, raw, both in zip(*found.values(), strict=True):
        assert set(both) == {"val/loss", "val/accuracy", "val_raw/loss", "val_raw/accuracy"}
        assert {name: both[name] for name in average} == average
        assert {name: both[name.replace("val/", "val_raw/")] for name in raw} == raw
        assert average["val/loss"] != raw["val/loss"]


@pytest.mark.parametrize(
    ("metric", "measured", "which"),
    [("val/loss", "average", "average"), ("val_raw/loss", "weights", "last"), (None,) * 3],
)
def test_best_checkpoint_loads_the_weights_of_its_monitor(tmp_path, metric, measured, which):
    said = {} if metric is None else {"metric": metric}
    run = tiny.fit(tmp_path / "run", parts(), **options("both", **said))
    assert run.best.evaluated == (measured or "average")
    assert run.best.step == 6  # the last, so that "last" and "average" load the same checkpoint
    best = min(each[metric or "val/loss"] for each in evaluations(run))
    assert loss_of(run, "best") == pytest.approx(best, rel=1e-6)
    assert loss_of(run, which or "average") == pytest.approx(best, rel=1e-6)


def test_evaluation_of_both_weights_changes_no_step(tmp_path):
    one = tiny.fit(tmp_path / "one", parts(), **options("average"))
    two = tiny.fit(tmp_path / "two", parts(), **options("both"))
    weights = []
    for run in (one, two):
        net = tiny.model()
        run.load_model(net, which="last")
        weights.append(tiny.weights(net))
    assert torch.equal(*weights)


def test_both_are_the_raw_weights_before_the_average_starts(tmp_path):
    said = options("both")
    said["average"] = {**EMA, "start": "4 steps"}
    found = evaluations(tiny.fit(tmp_path / "run", parts(), **said))
    assert [each["val/loss"] == each["val_raw/loss"] for each in found] == [True, True, False]


def test_requested_split_is_evaluated_with_both_weights(tmp_path):
    with tiny.prepare(tmp_path / "run", {**parts(), "test": (X, Y)}, **options("both")) as session:
        for _ in session.steps():
            pass
        found = session.evaluate("test")
    assert set(found) == {"test/loss", "test/accuracy", "test_raw/loss", "test_raw/accuracy"}


def test_raw_weights_that_are_not_evaluated_cannot_be_the_monitor():
    with pytest.raises(ConfigError, match=r"'val_raw/loss' is not measured\. Measured: val/loss"):
        tiny.plan(parts(), **options("average", metric="val_raw/loss"))


def test_resume_with_different_evaluated_weights_is_rejected(tmp_path):
    tiny.fit(tmp_path / "run", parts(), **options("average"))
    with pytest.raises(RunError, match=r"validation\.weights"):
        tiny.prepare(tmp_path / "run", copy.copy(parts()), **options("raw"))
