"""MLflow, with a real server on loopback that keeps everything in SQLite."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import surestep
from surestep import tracking
from surestep.base.errors import Preempted
from surestep.cli.main import main
from surestep.tracking import follower
from surestep.tracking.follower import Delivery
from surestep.tracking.mlflow_registry import Score, register_version
from surestep.tracking.mlflow_study import find_parent, finish_parent
from surestep.tracking.registry import tracker_class
from surestep.tracking.study import finish_study
from surestep.tracking.tracker import StudyResult
from surestep.trainer.planning import TaskOrigin
from tests.mirror.runs import StopAt
from tests.needs import needs
from tests.tracking.mlflow_server import Server
from tests.tracking.test_delivery import DATA, expected_points, options, train

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own
PROGRAM = {"logging.trackers": "mlflow", "logging.mlflow_model": "program"}


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


def write_options(folder, options):
    """Write values of options into the Plan of a run that was not tracked."""
    plan = json.loads((folder / "plan.json").read_text())
    for decision in plan:
        decision["value"] = options.get(decision["option"], decision["value"])
    (folder / "plan.json").write_text(json.dumps(plan))


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
    run = train(tmp_path, **{"logging.trackers": "mlflow", "checkpoint.every": "1 epoch"})
    found = only_run(client, tmp_path)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == tmp_path.name
    assert found.data.params["optim.name"] == "adamw"
    assert losses(client, found.info.run_id) == by_name(expected_points(run))
    best = f"checkpoints/{run.best.path.name}"
    assert found.data.tags["surestep.best_checkpoint"] == run.best.path.name
    stored = {file.path for file in client.list_artifacts(found.info.run_id, best)}
    assert stored == {f"{best}/{file.name}" for file in run.best.path.iterdir()}
    stored = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert stored > {"plan.json", "signature.json", "findings.json"}
    assert found.data.tags["surestep.findings"] == "SS605"
    assert "step-00000009.json" in checkpoints(client, found.info.run_id)


def checkpoints(client, run_id):
    return {Path(file.path).name for file in client.list_artifacts(run_id, "checkpoints")}


def test_best_checkpoint_is_uploaded_during_the_run_and_replaces_the_one_before(tmp_path, client):
    task, config = surestep.Task(nn.Linear(3, 1), "mse", DATA, val=DATA), options(max_steps=12)
    uploaded = []
    with surestep.prepare(task, config, run=tmp_path) as session:
        delivery = Delivery(tmp_path, tracker_class("mlflow")())
        for result in session.steps():
            if result.step % 4 == 0:
                if result.step != 8:
                    session.evaluate()
                session.save()
                delivery.deliver()
                uploaded.append(checkpoints(client, only_run(client, tmp_path).info.run_id))
        delivery.close()
    assert uploaded == [
        {"step-00000004"},
        {"step-00000004", "step-00000008.json"},
        {"step-00000008.json", "step-00000012"},
    ]


def test_logged_model_computes_what_the_best_checkpoint_does(tmp_path, client):
    import mlflow

    run = train(tmp_path, **PROGRAM)
    found = only_run(client, tmp_path)
    assert "surestep.model_is_weights" not in found.data.tags
    uri = f"runs:/{found.info.run_id}/model"
    run.load_model(expected := nn.Linear(3, 1), which="best")
    x = torch.randn(5, 3)
    loaded = mlflow.pytorch.load_model(uri)
    assert torch.equal(loaded(x), expected(x))
    generic = mlflow.pyfunc.load_model(uri)
    assert torch.equal(torch.from_numpy(generic.predict(x.numpy())), expected(x))
    signature = generic.metadata.signature.to_dict()
    spec = '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, %d]}}]'
    assert (signature["inputs"], signature["outputs"]) == (spec % 3, spec % 1)


def test_replay_of_a_recipe_logs_the_program_that_its_code_builds(tmp_path, client, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "surestep")
    words = ["train", "spiral", "--max-steps", "3", "--run", "r", "--logging.progress", "quiet"]
    assert main(words) == 0
    write_options(tmp_path / "r", {"logging.mlflow_model": "program"})
    assert main(["track", "replay", "r", "--to", "mlflow"]) == 0
    found = only_run(client, tmp_path / "r")
    assert "surestep.model_is_weights" not in found.data.tags
    assert found.data.params["task.hidden"] == "128"  # the recipe's default
    loaded = mlflow.pytorch.load_model(f"runs:/{found.info.run_id}/model")
    assert loaded(torch.zeros(5, 2)).shape[0] == 5


class Branching(nn.Linear):
    """A model whose forward depends on values, which torch.export rejects."""

    def forward(self, input):
        return super().forward(input) if input.sum() > -1e9 else input


def test_model_that_cannot_be_exported_is_logged_as_weights(tmp_path, client):
    import mlflow

    run = train(tmp_path, model=Branching(3, 1), **PROGRAM)
    tags = only_run(client, tmp_path).data.tags
    assert "data-dependent" in tags["surestep.model_is_weights"]
    uri = tags["surestep.model"].split()[1]
    folder = mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path / "downloaded"))
    weights = load_file(f"{folder}/weights.safetensors")
    run.load_model(expected := nn.Linear(3, 1), which="best")
    assert torch.equal(weights["weight"], expected.weight)
    assert mlflow.models.get_model_info(uri).signature.inputs.inputs[0].shape == (-1, 3)


def test_champion_moves_only_to_a_better_model(tmp_path, client):
    names = {"logging.trackers": "mlflow", "logging.mlflow_registered_model": "digits"}
    names["logging.mlflow_model"] = "weights"  # without it, a registered model is a program
    champions = []
    for name, lr in [("first", 0.01), ("worse", 1e-4), ("better", 0.1)]:
        train(tmp_path / name, **names, **{"optim.lr": lr})
        version = client.get_model_version_by_alias("digits", "champion")
        champions.append(Path(client.get_run(version.run_id).data.tags["surestep.run"]).name)
    assert champions == ["first", "first", "better"]
    assert len(client.search_model_versions("name='digits'")) == 3
    delivery = Delivery(tmp_path / "better", tracker_class("mlflow")(), from_start=True)
    delivery.deliver()
    assert len(client.search_model_versions("name='digits'")) == 3  # each model once


class Interleaved:
    """A client that does something else before one of its calls, once."""

    def __init__(self, client, method, action):
        self.client, self.method, self.action = client, method, action

    def __getattr__(self, name):
        if name == self.method:
            self.method = None
            self.action()
        return getattr(self.client, name)


@pytest.mark.parametrize("value", [0.1, 0.9])
@pytest.mark.parametrize(
    "method",
    ["get_model_version_by_alias", "set_model_version_tag", "set_registered_model_alias"],
)
def test_best_of_two_runs_that_finish_at_once_is_the_champion(client, method, value):
    name = f"race-{method}-{value}"
    run = client.create_run(client.create_experiment(name))

    def register(client, source, loss):
        register_version(
            client,
            name,
            source=f"{run.info.artifact_uri}/{source}",
            run_id=run.info.run_id,
            model_id=None,
            score=Score("val/loss", "min", loss),
        )

    register(client, "before", 1.0)
    other = Interleaved(client, method, lambda: register(client, "second", value))
    register(other, "first", 0.5)
    champion = client.get_model_version_by_alias(name, "champion")
    assert float(champion.tags["surestep.value"]) == min(value, 0.5)


def test_trials_of_a_study_are_nested_below_its_run(tmp_path, client):
    study = TaskOrigin(study="study-7")
    for trial in ("0", "1"):
        train(tmp_path / trial, origin=study, **{"logging.trackers": "mlflow"})
    report = tmp_path / "report.html"
    report.write_text("<p>report</p>")
    result = StudyResult("study-7", tmp_path, {"optim.lr": 0.1}, {"val/loss": 0.5}, (report,))
    assert finish_study(["mlflow"], result) == finish_study(["mlflow"], result) == []
    parents = {
        only_run(client, tmp_path / trial).data.tags["mlflow.parentRunId"] for trial in ("0", "1")
    }
    (parent,) = map(client.get_run, parents)
    assert (parent.info.run_name, parent.info.status) == ("study-7", "FINISHED")
    assert parent.data.tags["best.optim.lr"] == "0.1"
    assert parent.data.metrics["val/loss"] == 0.5
    stored = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert stored == {"best.json", "report.html"}


def test_parent_runs_that_were_created_at_once_are_merged(tmp_path, client):
    experiment = client.create_experiment("merge")
    first = find_parent(client, experiment, "study")
    tags = {"surestep.study": "study", "surestep.kind": "study"}
    second = client.create_run(experiment, tags=tags).info.run_id
    assert find_parent(client, experiment, "study") == first
    trial = client.create_run(experiment, tags={"mlflow.parentRunId": second}).info.run_id
    finish_parent(client, experiment, StudyResult("study", tmp_path, {}, {}))
    assert client.get_run(trial).data.tags["mlflow.parentRunId"] == first
    assert client.get_run(second).info.lifecycle_stage == "deleted"


def test_replay_of_a_study_sends_its_trials_and_its_result(tmp_path, client, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "surestep")
    space = {"optim.lr": "log(1e-3, 1e-2)"}
    fixed = {"max_steps": 3, "seed": 0, "logging.progress": "quiet"}
    study = tmp_path / "study"
    found = surestep.search("spiral", space, trials=2, options=fixed, study=study)
    for _ in range(2):
        assert main(["track", "replay", str(study), "--to", "mlflow"]) == 0
    folders = [path.parent for path in sorted(study.glob("*/*/config.json"))]
    assert len(folders) == 2
    runs = [only_run(client, folder) for folder in folders]
    for folder, run in zip(folders, runs, strict=True):
        assert losses(client, run.info.run_id) == by_name(expected_points(surestep.Run(folder)))
        assert run.info.status == "FINISHED"
    (parent,) = {run.data.tags["mlflow.parentRunId"] for run in runs}
    result = client.get_run(parent)
    assert result.info.status == "FINISHED"
    assert best_tags(result) == {
        f"best.{name}": str(value) for name, value in found.best.params.items()
    }
    assert result.data.metrics == {**found.best.values, **found.winner.test}
    stored = {file.path for file in client.list_artifacts(parent)}
    assert stored == {"best.json", "best.toml", "report.html", "result.json"}


def best_tags(run):
    return {name: value for name, value in run.data.tags.items() if name.startswith("best.")}


def test_study_has_no_tags_of_the_best_trial_before(tmp_path, client):
    before = StudyResult("other", tmp_path, {"optim.name": "sgd", "optim.momentum": 0.9}, {})
    now = StudyResult("other", tmp_path, {"optim.name": "adamw"}, {"val/loss": 0.5})
    assert finish_study(["mlflow"], before) == finish_study(["mlflow"], now) == []
    experiment = client.get_experiment_by_name("surestep").experiment_id
    parent = find_parent(client, experiment, "other")
    assert best_tags(client.get_run(parent)) == {"best.optim.name": "adamw"}


@pytest.mark.parametrize(("stop_at", "status"), [(None, "FINISHED"), (6, "KILLED")])
def test_event_after_the_end_leaves_the_status_of_the_mlflow_run(tmp_path, client, stop_at, status):
    stop = [StopAt(stop_at)] if stop_at else []
    with pytest.raises(Preempted) if stop_at else nullcontext():
        train(tmp_path, callbacks=stop, **{"logging.trackers": "mlflow"})
    assert only_run(client, tmp_path).info.status == status
    late = {"event": "evaluation", "time": 1.0, "step": 6, "metrics": {"test/loss": 0.5}}
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(json.dumps(late) + "\n")
    assert tracking.replay_run(tmp_path, tracker_class("mlflow")()) > 0
    found = only_run(client, tmp_path)
    assert found.data.metrics["test/loss"] == 0.5
    assert found.info.status == status


def test_resumed_run_continues_the_same_mlflow_run(tmp_path, client):
    train(tmp_path, max_steps=6, **{"logging.trackers": "mlflow"})
    run = train(tmp_path, **{"logging.trackers": "mlflow"})
    found = only_run(client, tmp_path)
    assert losses(client, found.info.run_id) == by_name(expected_points(run))
    assert found.info.status == "FINISHED"


def test_nothing_is_lost_while_the_server_is_away(tmp_path, client, server, monkeypatch, capfd):
    monkeypatch.setattr(follower, "STALLED_S", 1.0)
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
