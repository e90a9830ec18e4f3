"""Trackers that hang, a server that is killed during a run, and a full disk do not harm the run."""

import subprocess
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.record.io import read_json
from surestep.tracking import follower
from surestep.tracking.follower import Delivery
from surestep.tracking.tensorboard import TensorBoardTracker
from tests.needs import needs
from tests.torture.disks import may_mount, small_disk
from tests.tracking.mlflow_server import Server
from tests.tracking.proxy import proxy_of
from tests.tracking.test_delivery import DATA, Recorder, expected_points, losses, train
from tests.tracking.test_end_of_run import QUIET, notices
from tests.tracking.test_lost_answers import deliver
from tests.tracking.test_mlflow import by_name, only_run
from tests.tracking.test_mlflow import losses as mlflow_losses
from tests.tracking.test_tensorboard import read

STEPS = 120
PAUSES = {name: getattr(follower, name) for name in ("INTERVAL_S", "LONGEST_PAUSE_S")}
ATTEMPTS = 3  # in an outage: after 5, 2 and 4 s, and the next 8 s later


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(follower, "INTERVAL_S", 0.05)
    monkeypatch.setattr(follower, "LONGEST_PAUSE_S", 0.5)


@pytest.fixture
def failures(monkeypatch):
    """Return the exceptions of deliveries so far."""
    found, deliver = [], Delivery.deliver

    def watched(self):
        try:
            deliver(self)
        except Exception as error:
            found.append(error)
            raise

    monkeypatch.setattr(Delivery, "deliver", watched)
    return found


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_everything_arrives_once_after_the_server_was_killed_during_the_run(
    tmp_path, monkeypatch, failures, capfd
):
    needs("mlflow")
    from mlflow import MlflowClient

    server, run = Server(tmp_path), tmp_path / "run"
    record = run / "trackers" / "mlflow.json"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    x = torch.randn(64, 3)
    task = surestep.Task(nn.Linear(3, 1), "mse", (x, x[:, :1]), val=(x, x[:, :1]))
    logging = {"every": "2 steps", "trackers": "mlflow", "progress": "plain"}
    config = surestep.Config(max_steps=STEPS, batch_size=32, logging=logging)
    server.start()
    try:
        with surestep.prepare(task, config, run=run) as session:
            for result in session.steps():
                if result.step == STEPS // 3:
                    wait_until(lambda: read_json(record)["offset"] if record.exists() else 0)
                    server.kill()
                if result.step == 2 * STEPS // 3:  # a third of the run without a server
                    wait_until(lambda: len(failures) >= 3)
                    server.start()
        client = MlflowClient(server.url)
        found = mlflow_losses(client, only_run(client, run).info.run_id)
        assert found == by_name(expected_points(surestep.Run(run)))
    finally:
        server.kill()
    assert capfd.readouterr().err.count("mlflow does not take what is recorded") == 1


class SlowData(Dataset):
    """Takes 0.2 s for a batch of 8."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.025)
        x = torch.randn(3, generator=torch.Generator().manual_seed(index))
        return x, x[:1]


def test_everything_arrives_once_after_an_outage_with_the_usual_pauses(
    tmp_path, monkeypatch, failures
):
    """The pauses between two attempts are those of a real run; other tests reach the longest."""
    needs("mlflow")
    from mlflow import MlflowClient

    for name, pause in PAUSES.items():
        monkeypatch.setattr(follower, name, pause)
    server, run = Server(tmp_path), tmp_path / "run"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    task = surestep.Task(nn.Linear(3, 1), "mse", SlowData(), val=(DATA[0], DATA[0][:, :1]))
    logging = {"every": "2 steps", "trackers": "mlflow", "progress": "quiet"}
    config = surestep.Config(max_steps=2000, batch_size=8, logging=logging)

    def delivered():
        path = run / "trackers" / "mlflow.json"
        return read_json(path)["offset"] if path.exists() else 0

    server.start()
    killed, started_at = False, None
    try:
        with surestep.prepare(task, config, run=run) as session:
            for _ in session.steps():
                if not killed and delivered():
                    server.kill()
                    killed = True
                elif killed and started_at is None and len(failures) >= ATTEMPTS:
                    before = delivered()
                    server.start()
                    started_at = time.monotonic()
                elif started_at and (delivered() > before or time.monotonic() - started_at > 120):
                    break
            assert started_at
            assert delivered() > before  # before the run ends
        assert len(failures) >= ATTEMPTS
        client = MlflowClient(server.url)
        found = mlflow_losses(client, only_run(client, run).info.run_id)
        assert found == by_name(expected_points(surestep.Run(run)))
    finally:
        server.kill()


class Hanging(surestep.Tracker):
    """Hangs in one of its methods until `released` is set."""

    name = "hanging"

    def __init__(self, method):
        self.entered, self.released = threading.Event(), threading.Event()
        setattr(self, method, self._hang)

    def _hang(self, *_):
        self.entered.set()
        self.released.wait()


@pytest.mark.parametrize("method", ["start", "log", "checkpoint", "end", "close"])
def test_tracker_that_hangs_delays_neither_the_steps_nor_another_tracker(
    tmp_path, monkeypatch, method, capfd
):
    for name in ("HANGING_S", "UPLOAD_S"):
        monkeypatch.setattr(follower, name, 0.5)
    hanging, recorder = Hanging(method), Recorder()
    run = train(tmp_path, hanging, recorder)  # returns although the method does not
    assert hanging.entered.is_set()
    assert not hanging.released.is_set()
    assert losses(recorder) == expected_points(run)
    assert run.last.step == 12
    if method != "close":
        assert capfd.readouterr().err.count("replay_run(") == 1
    hanging.released.set()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    needs("mlflow")
    server = Server(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_run_waits_for_an_mlflow_server_that_is_slow(tmp_path, monkeypatch, server):
    from mlflow import MlflowClient

    monkeypatch.setattr(follower, "STALLED_S", 0.5)
    monkeypatch.setattr(follower, "BATCH", 10)
    with proxy_of(server.url) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
        proxy.delay_s = 0.2  # 5 s in all
        options = {"logging.trackers": "mlflow", "logging.mlflow_model": "off", **QUIET}
        run = train(tmp_path, **options)
    client = MlflowClient(server.url)
    found = mlflow_losses(client, only_run(client, tmp_path).info.run_id)
    assert found == by_name(expected_points(run))
    assert "trackers" not in run.status


@pytest.mark.filterwarnings("ignore")
def test_mlflow_server_that_hangs_is_reported_and_then_gets_everything(
    tmp_path, monkeypatch, server
):
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(follower, "STALLED_S", 0.5)
    options = {"logging.trackers": "mlflow", "logging.mlflow_model": "off", **QUIET}
    with proxy_of(server.url) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)
        proxy.is_hanging = True
        run = train(tmp_path, **options)
        first, last = notices(run)
        assert "mlflow does not take what is recorded" in first
        assert "ReadTimeout" in first
        assert "mlflow lacks " in last
        proxy.is_hanging = False
        deliver(tmp_path)
    client = MlflowClient(server.url)
    found = mlflow_losses(client, only_run(client, tmp_path).info.run_id)
    assert found == by_name(expected_points(run))


def test_values_of_a_full_disk_are_written_when_it_has_space(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "STALLED_S", 1.0)
    if not may_mount(tmp_path / "probe"):
        pytest.skip("needs the permission to mount")
    disk = tmp_path / "run" / "tensorboard"
    with small_disk(disk, 16):
        options = {"max_steps": 200, "validation.every": "50 steps"}
        run = train(tmp_path / "run", TensorBoardTracker(), **options)
        assert run.last.step == 200
        late = Delivery(run.path, TensorBoardTracker())
        assert late.pending
        subprocess.run(["mount", "-o", "remount,size=8192k", str(disk)], check=True)
        late.deliver()
        late.close()
        found = {
            (each.step, name, round(each.value, 4))
            for name in ("train/loss", "val/loss")
            for each in read(run.path).Scalars(name)
        }
    assert found == {(step, name, round(value, 4)) for step, name, value in expected_points(run)}
