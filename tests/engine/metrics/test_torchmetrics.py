"""Metrics of torchmetrics that return a table or several values."""

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    BinaryAveragePrecision,
    BinaryF1Score,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
)

import surestep
from surestep.base.errors import ConfigError, TaskError
from surestep.engine.metrics.base import find_object, metric_modes, table_metric_names
from tests import tiny


class Table:
    """A metric that is known to be a table only after it is computed."""

    def __init__(self):
        self.counts = torch.zeros(3, 3)

    def reset(self):
        self.counts.zero_()

    def update(self, outputs, targets):
        for row, column in zip(targets.tolist(), outputs.argmax(1).tolist(), strict=True):
            self.counts[row, column] += 1

    def compute(self):
        return self.counts


def test_names_and_modes_of_metrics_are_known_before_the_run():
    rates = MetricCollection({"ap": BinaryAveragePrecision(), "f1": BinaryF1Score()})
    assert metric_modes("m", rates) == {"m_ap": "max", "m_f1": "max"}
    assert metric_modes("m", MulticlassCalibrationError(3)) == {"m": "min"}
    assert table_metric_names({"a": rates, "b": MulticlassConfusionMatrix(3)}) == ("b",)


X, Y = tiny.data()


def parts():
    found = {"table": MulticlassConfusionMatrix(3), "ece": MulticlassCalibrationError(3)}
    return {"val": (X, Y), "metrics": found}


def test_value_of_a_metric_with_a_longer_name_is_not_one_of_the_shorter():
    assert find_object("f1_weighted_mean", ["f1", "f1_weighted", "f"]) == "f1_weighted"
    assert find_object("f1", ["f1"]) is None


def test_table_metric_is_stored_in_events_and_checkpoints(tmp_path):
    run = tiny.fit(tmp_path, parts(), validation={"metric": "ece"})
    events = [each for each in run.events() if each["event"] == "evaluation"]
    assert [sum(map(sum, each["metrics"]["val/table"])) for each in events] == [20.0, 20.0]
    assert run.last.metrics.tables["val/table"] == events[-1]["metrics"]["val/table"]
    with tiny.prepare(tmp_path, parts(), validation={"metric": "ece"}) as session:
        assert session.state.best.latest["val/table"] == events[-1]["metrics"]["val/table"]
        assert session.state.best.metric == "val/ece"


def test_table_metric_is_rejected_as_the_monitor(tmp_path):
    message = r"validation\.metric='table' is a table, which cannot be"
    with pytest.raises(ConfigError, match=message):
        tiny.plan(parts(), validation={"metric": "table", "mode": "max"})
    own = {
        "val": (X, Y),
        "metrics": {"own": Table()},
    }
    with pytest.raises(TaskError, match=r"validation\.metric='val/own' is a table"):
        tiny.prepare(tmp_path, own, validation={"metric": "own", "mode": "max"})


def test_value_of_a_metric_collection_can_be_the_monitor(tmp_path):
    y = (Y == 0).long()
    rates = MetricCollection({"ap": BinaryAveragePrecision(), "f1": BinaryF1Score()})
    parts = {
        "model": nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)),
        "loss": surestep.losses.binary(),
        **{"train": (X, y), "val": (X, y), "metrics": {"at": rates}},
    }
    run = tiny.fit(tmp_path, parts, validation={"metric": "at_ap"})
    assert run.status["monitor"] == ("val/at_ap", "max")
    assert set(run.best.metrics) == {"val/at_ap", "val/at_f1", "val/loss"}
