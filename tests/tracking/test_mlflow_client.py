"""What MLflow's client is asked for, without MLflow; `test_mlflow.py` has a real server."""

from types import SimpleNamespace

import pytest

from surestep.tracking import mlflow as module
from surestep.tracking import mlflow_registry
from surestep.tracking.mlflow import MLflowTracker
from surestep.tracking.mlflow_registry import Score
from surestep.tracking.tracker import TrackedRun


class Registry:
    """The versions of a model, and its champion."""

    def __init__(self, losses):
        self.rivals = losses
        self.versions, self.champion = {}, None
        self.add("1", 0.5)

    def add(self, number, loss):
        tags = mlflow_registry._tags(Score("val/loss", "min", loss))
        self.versions[number] = SimpleNamespace(version=number, tags=tags)

    def search_model_versions(self, _):
        return list(self.versions.values())

    def set_model_version_tag(self, _, number, key, value):
        self.versions[number].tags[key] = value

    def set_registered_model_alias(self, _, alias, number):
        self.champion = number
        for at, loss in enumerate(self.rivals, 2):  # they finish now, and are not yet the champion
            self.add(str(at), loss)
            self.set_model_version_tag("", str(at), mlflow_registry._MARK, "moving")


@pytest.mark.parametrize("losses", [(0.1, 0.3), (0.3, 0.1), (0.7, 0.6)], ids=str)
def test_best_of_three_runs_that_finish_at_once_is_the_champion(monkeypatch, losses):
    monkeypatch.setattr(mlflow_registry, "_champion", lambda *_: None)
    registry = Registry(losses)
    mlflow_registry._move_champion(registry, "digits", "1", Score("val/loss", "min", 0.5))
    every = (0.5, *losses)
    assert registry.champion == str(1 + every.index(min(every)))


class Away:
    """A client of a server that fails after it has created a run."""

    def __init__(self):
        self.runs = []

    def create_run(self, *_, **__):
        info = SimpleNamespace(run_id=f"run-{len(self.runs)}", start_time=0)
        self.runs.append(SimpleNamespace(info=info, data=SimpleNamespace(metrics={})))
        return self.runs[-1]

    def search_runs(self, *_):
        return []  # not yet: it lists what it has a moment later

    def set_tag(self, *_):
        raise ConnectionError


def test_start_that_failed_halfway_goes_on_with_the_run_that_it_created(monkeypatch, tmp_path):
    client, tracker = Away(), MLflowTracker()
    monkeypatch.setattr(module, "_connect", lambda: (client, "0"))
    for _ in range(3):
        with pytest.raises(ConnectionError):
            tracker.start(TrackedRun(tmp_path, "run", {}, {}, "key", study="study"))
    assert len(client.runs) == 1
