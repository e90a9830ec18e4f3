"""Weights & Biases without a network: its offline files are read back."""

import json
import struct
import time
from pathlib import Path

import pytest
from torch import nn

import surestep
from surestep.tracking.follower import Delivery
from surestep.tracking.study import finish_study
from surestep.tracking.tracker import StudyResult
from surestep.tracking.wandb import WandbTracker
from surestep.tracking.wandb_log import read_chunks
from surestep.trainer.planning import TaskOrigin
from tests.needs import needs
from tests.tracking.test_delivery import DATA, expected_points, options, train


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    needs("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))


def test_record_without_its_end_is_not_read():
    header = struct.pack("<IHB", 0, 4, 1)
    data = bytes(7) + (header + b"abcd") * 2
    assert list(read_chunks(data)) == [b"abcd"] * 2
    for missing in range(1, 12):
        assert list(read_chunks(data[:-missing])) == [b"abcd"]


def paths(folder):
    """Return the offline files of a run folder, in order."""
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def records(folder):
    """Return the records in the offline files of a run folder, in order."""
    return [record for path in paths(folder) for record in complete_file(path)]


def read_file(path):
    """Return the complete records of a file."""
    from wandb.proto import wandb_internal_pb2

    return [wandb_internal_pb2.Record.FromString(chunk) for chunk in read_chunks(path.read_bytes())]


def complete_file(path):
    """Return the records of a file; the service may write its end after `finish()` has returned."""
    for _ in range(2400):  # two minutes
        found = read_file(path)
        if any(record.HasField("exit") for record in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{path} has no end")


def rows_of(records):
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in one.item}
        for one in (record.history for record in records if record.HasField("history"))
    ]


def written_rows(folder):
    """Return the rows of offline files, of which only the last has an end."""
    *killed, last = paths(folder)
    return rows_of(
        [*(record for path in killed for record in read_file(path)), *complete_file(last)]
    )


def losses_of(rows):
    return [
        (row["step"], name, row[name])
        for row in rows
        for name in ("train/loss", "val/loss")
        if name in row
    ]


def history(folder):
    return rows_of(records(folder))


def losses(folder):
    return losses_of(history(folder))


def test_run_is_written_offline_and_resumed_with_the_same_id(tmp_path):
    folder = tmp_path / "run"
    train(folder, max_steps=6, **{"logging.trackers": "wandb"})
    run = train(folder, **{"logging.trackers": "wandb"})
    assert losses(folder) == expected_points(run)
    runs = [record.run for record in records(folder) if record.HasField("run")]
    assert len({one.run_id for one in runs}) == 1
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["optim.name"] == "adamw"
    rows = [row["_step"] for row in history(folder)]
    assert rows == sorted(set(rows))  # across the folders of both processes


def test_processes_of_a_run_within_one_second_have_a_folder_each(tmp_path):
    train(tmp_path, max_steps=6)
    for _ in range(3):
        delivery = Delivery(tmp_path, WandbTracker(), from_start=True)
        delivery.deliver()
        delivery.close()
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 3


class Killed(BaseException):
    """Ends `start` where a kill of the process could: after W&B has its run."""


def test_process_that_is_killed_while_wandb_starts_leaves_one_run(tmp_path, monkeypatch):
    import wandb

    run, init = train(tmp_path), wandb.init

    def init_and_end(**options):
        init(**options).finish()
        raise Killed

    monkeypatch.setattr(wandb, "init", init_and_end)
    with pytest.raises(Killed):
        Delivery(tmp_path, WandbTracker()).deliver()
    monkeypatch.setattr(wandb, "init", init)
    delivery = Delivery(tmp_path, WandbTracker())
    delivery.deliver()
    delivery.close()
    found = [record.run.run_id for record in records(tmp_path) if record.HasField("run")]
    assert len(set(found)) == 1
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2
    assert losses(tmp_path) == expected_points(run)


def artifacts(folder):
    return [record.artifact for record in records(folder) if record.HasField("artifact")]


def names(artifact):
    manifest = artifact.manifest
    return {Path(entry.path).name for entry in manifest.contents}


def test_best_checkpoint_is_an_artifact_and_others_are_references(tmp_path):
    task, config = surestep.Task(nn.Linear(3, 1), "mse", DATA, val=DATA), options()
    with surestep.prepare(task, config, run=tmp_path) as session:
        delivery = Delivery(tmp_path, WandbTracker())
        for result in session.steps():
            if result.step % 4 == 0:
                if result.step != 8:
                    session.evaluate()
                session.save()
                delivery.deliver()
        delivery.close()
    logged = artifacts(tmp_path)
    aliases = [set(artifact.aliases) for artifact in logged]
    assert aliases == [
        {"best", "latest", "step-00000004"},
        {"latest", "step-00000008"},
        {"best", "latest", "step-00000012"},
    ]
    assert len({artifact.name for artifact in logged}) == 1
    for artifact in logged:
        files = {"manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"}
        assert names(artifact) == files
    is_reference = [
        all(entry.ref.startswith("file://") for entry in artifact.manifest.contents)
        for artifact in logged
    ]
    assert is_reference == [False, True, False]
    metadata = json.loads(logged[-1].metadata)
    assert metadata["metrics"] == surestep.Run(tmp_path).best.metrics
    assert metadata["signature"]["inputs"][0]["shape"] == [-1, 3]


def test_checkpoint_that_a_run_continues_from_is_its_input(tmp_path):
    first, branch = tmp_path / "first", tmp_path / "branch"
    train(first, **{"logging.trackers": "wandb"})
    train(branch, from_=f"{first}@last", max_steps=18, **{"logging.trackers": "wandb"})
    (used,) = [artifact for artifact in artifacts(branch) if artifact.use_after_commit]
    logged = {artifact.name: artifact for artifact in artifacts(first)}
    assert used.name in logged  # the same content under the same name is the same version
    assert {entry.digest for entry in used.manifest.contents} == {
        entry.digest for entry in artifacts(first)[-1].manifest.contents
    }


def test_findings_are_in_the_summary_and_warnings_are_alerts(tmp_path):
    train(tmp_path, **{"logging.trackers": "wandb"})
    found = [
        json.loads(update.value_json)
        for record in records(tmp_path)
        if record.HasField("summary")
        for update in record.summary.update
        if update.key == "findings"
    ]
    assert found[-1].keys() == {"SS605 leakage-by-duplicates"}
    alerts = [record.alert.title for record in records(tmp_path) if record.HasField("alert")]
    assert alerts == [f"{tmp_path.name}: SS605 leakage-by-duplicates"]


def test_trials_and_the_result_of_a_study_are_one_group(tmp_path):
    trial, report = tmp_path / "trial", tmp_path / "report.html"
    report.write_text("<p>report</p>")
    train(trial, origin=TaskOrigin(study="study-7"), **{"logging.trackers": "wandb"})
    study = StudyResult("study-7", tmp_path, {"optim.lr": 0.1}, {"val/loss": 0.5}, (report,))
    assert finish_study(["wandb"], study) == finish_study(["wandb"], study) == []
    groups = {
        record.run.run_group
        for folder in (trial, tmp_path)
        for record in records(folder)
        if record.HasField("run")
    }
    assert groups == {"study-7"}
    results = [record.run for record in records(tmp_path) if record.HasField("run")]
    assert {(run.job_type, run.display_name) for run in results} == {("study", "study-7")}
    assert len({run.run_id for run in results}) == 1
    assert names(artifacts(tmp_path)[-1]) == {"report.html"}
