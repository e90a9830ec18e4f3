"""MLflow, with a real server on loopback that keeps everything in SQLite."""

import os
import subprocess
import sys
import time
import urllib.request

import pytest

from surestep.tracking import follower
from surestep.tracking.follower import Delivery
from surestep.tracking.registry import tracker_class
from tests.multi_rank.torchrun import free_port
from tests.needs import needs
from tests.tracking.test_delivery import expected_points, train


class Server:
    """An MLflow server, which can be killed and started again."""

    def __init__(self, folder):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port)]
        self._command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
        self._command += ["--artifacts-destination", str(folder / "artifacts")]
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _ in range(600):
            time.sleep(0.1)
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1):
                    return
            except OSError:
                assert self._process.poll() is None
        raise AssertionError("the server did not start")

    def kill(self):
        if self._process is not None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    needs("mlflow")
    server = Server(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def client(server, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    return MlflowClient(server.url)


def only_run(client, folder):
    experiment = client.get_experiment_by_name("surestep")
    runs = client.search_runs([experiment.experiment_id])
    found = [run for run in runs if run.data.tags.get("surestep.run") == str(folder)]
    assert len(found) == 1
    return found[0]


def losses(client, run_id):
    return [
        (metric.step, name, metric.value)
        for name in ("train/loss", "val/loss")
        for metric in client.get_metric_history(run_id, name)
    ]


def by_name(points):
    return sorted(points, key=lambda point: (point[1], point[0]))


def test_run_is_logged_with_its_options_metrics_and_best_checkpoint(tmp_path, client):
    run = train(tmp_path, **{"logging.trackers": "mlflow"})
    found = only_run(client, tmp_path)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == tmp_path.name
    assert found.data.params["optim.name"] == "adamw"
    assert losses(client, found.info.run_id) == by_name(expected_points(run))
    best = f"checkpoints/{run.best.path.name}"
    assert found.data.tags["surestep.best_checkpoint"] == run.best.path.name
    stored = {file.path for file in client.list_artifacts(found.info.run_id, best)}
    assert stored == {f"{best}/{file.name}" for file in run.best.path.iterdir()}
    assert {file.path for file in client.list_artifacts(found.info.run_id)} > {"plan.json"}


def test_resumed_run_continues_the_same_mlflow_run(tmp_path, client):
    train(tmp_path, max_steps=6, **{"logging.trackers": "mlflow"})
    run = train(tmp_path, **{"logging.trackers": "mlflow"})
    found = only_run(client, tmp_path)
    assert losses(client, found.info.run_id) == by_name(expected_points(run))
    assert found.info.status == "FINISHED"


def test_nothing_is_lost_while_the_server_is_away(tmp_path, client, server, monkeypatch, capfd):
    monkeypatch.setattr(follower, "LAST_S", 1.0)
    server.kill()
    try:
        run = train(tmp_path, **{"logging.trackers": "mlflow"})
    finally:
        server.start()
    printed = capfd.readouterr().err
    assert f"surestep track replay {tmp_path} --to mlflow" in printed
    delivery = Delivery(tmp_path, tracker_class("mlflow")())
    delivery.deliver()
    delivery.close()
    assert losses(client, only_run(client, tmp_path).info.run_id) == by_name(expected_points(run))
