"""The trackers of MLflow and W&B pass the suite, with a store in SQLite and without a network."""

import json
import re
import shutil
import time

import pytest

from surestep.testing import TrackerSuite
from surestep.tracking.mlflow_store import create_store
from surestep.tracking.registry import tracker_class
from tests.needs import needs
from tests.tracking.test_wandb import records


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, in MLflow
class TestMLflow(TrackerSuite):
    points = 3_000  # thirty batches; TensorBoard is sent a hundred

    @pytest.fixture(scope="class")
    def empty_store(self, tmp_path_factory):
        """Return a file with the tables of MLflow, which it creates in a second."""
        needs("mlflow")
        path = tmp_path_factory.mktemp("store") / "mlflow.db"
        create_store(f"sqlite:///{path}")
        return path

    @pytest.fixture(autouse=True)
    def store(self, tmp_path, monkeypatch, empty_store):
        shutil.copy(empty_store, tmp_path)
        self.uri = f"sqlite:///{tmp_path}/mlflow.db"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", self.uri)
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "suite")
        monkeypatch.chdir(tmp_path)

    def make_tracker(self):
        return tracker_class("mlflow")()

    def normalize_name(self, name):
        return re.sub(r"[^\w\-. :/]", "_", name)

    def read_values(self, run):
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        experiment = client.get_experiment_by_name("suite")
        found = client.search_runs([experiment.experiment_id])
        (mine,) = [each for each in found if each.info.run_name == run.name]
        return [
            (metric.step, name, metric.value)
            for name in mine.data.metrics
            for metric in client.get_metric_history(mine.info.run_id, name)
        ]


class TestWandb(TrackerSuite):
    points = 3_000  # thirty batches; TensorBoard is sent a hundred

    @pytest.fixture(autouse=True)
    def offline(self, tmp_path, monkeypatch):
        needs("wandb")
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))

    def make_tracker(self):
        return tracker_class("wandb")()

    def read_values(self, run):
        found, count = [], len(list(run.glob("wandb/offline-run-*")))
        written, deadline = records(run), time.monotonic() + 120
        while sum(record.HasField("exit") for record in written) < count:
            assert time.monotonic() < deadline, "W&B's service did not write the end of a run"
            time.sleep(0.05)  # the service writes the last records after finish() returned
            written = records(run)
        for record in written:
            if record.HasField("history"):
                row = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }
                step = row.pop("step", None)
                found += [
                    (step, name, value)
                    for name, value in row.items()
                    if not name.startswith("_") and isinstance(value, (int, float))
                ]
        return found
