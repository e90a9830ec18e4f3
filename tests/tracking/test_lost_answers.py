"""MLflow has everything once, although the answer of a request was lost: real server, proxy."""

import shutil

import pytest

from surestep.tracking.follower import Delivery
from surestep.tracking.registry import tracker_class
from tests.needs import needs
from tests.tracking.mlflow_server import Server
from tests.tracking.proxy import proxy_of
from tests.tracking.test_delivery import expected_points, train
from tests.tracking.test_mlflow import by_name, losses, write_options

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    needs("mlflow")
    server = Server(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


def make_run(folder):
    """Train; write options into the Plan as if it had been tracked by MLflow."""
    run = train(folder, **{"logging.progress": "quiet"})
    options = {"logging.trackers": ["mlflow"], "logging.mlflow_model": "weights"}
    write_options(folder, options)
    return run


def deliver(folder):
    """Deliver as a run does: again after an error, with the same object; return the errors."""
    delivery, errors = Delivery(folder, tracker_class("mlflow")()), []
    while delivery.pending and len(errors) < 100:
        try:
            delivery.deliver()
        except Exception as error:
            errors.append(error)
    delivery.close()
    return errors


def describe(client, name):
    """Return what the server has of the experiment and the registered model of this name."""
    experiment = client.get_experiment_by_name(name).experiment_id
    runs = client.search_runs([experiment])
    assert len(runs) == 1
    (info,) = (run.info for run in runs)
    models = client.search_logged_models([experiment])
    versions = client.search_model_versions(f"name='{name}'")
    return {
        "status": info.status,
        "losses": losses(client, info.run_id),
        "params": {**runs[0].data.params, "logging.mlflow_registered_model": None},
        "tags": sorted(runs[0].data.tags),
        "files": sorted(file.path for file in client.list_artifacts(info.run_id)),
        "models": [(str(model.status), model.source_run_id == info.run_id) for model in models],
        "model metrics": sorted(metric.key for metric in models[0].metrics or ()),
        "versions": [(version.version, version.aliases) for version in versions],
    }


@pytest.mark.parametrize("retries", [0, 1])
def test_lost_answer_doubles_nothing(tmp_path, monkeypatch, server, retries):
    """Each kind of request loses an answer, with and without a repetition by the client.

    A client that repeats a request continues, so all kinds lose theirs in one delivery.
    """
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", str(retries))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    run, client = make_run(tmp_path / "run"), MlflowClient(server.url)
    with proxy_of(server.url) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.url)

        def send(name, kinds):
            """Deliver a copy of the run to an experiment of this name; return what it has."""
            folder = shutil.copytree(run.path, tmp_path / name)
            write_options(folder, {"logging.mlflow_registered_model": name})
            monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", name)
            proxy.lost, proxy.requests = list(kinds), []
            errors = deliver(folder)
            assert proxy.lost == []
            assert len(errors) <= len(kinds), errors
            return describe(client, name)

        expected = send(f"plain-{retries}", [])
        assert expected["losses"] == by_name(expected_points(run))
        kinds = sorted(set(proxy.requests))
        changing = [kind for kind in kinds if kind.startswith(("POST", "PATCH"))]
        assert len(changing) > 10
        others = [kind for kind in kinds if kind not in changing]
        for number, lost in enumerate([kinds] if retries else [*([k] for k in changing), others]):
            assert send(f"lost-{retries}-{number}", lost) == expected, lost
