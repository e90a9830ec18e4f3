import logging
import shutil

import pytest
import torch

import surestep
from surestep import Run
from surestep.base.errors import CheckpointError, CorruptCheckpointError, RunError
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.trainer.evaluator import evaluate_run
from tests import tiny
from tests.record.checkpoint.forge import forge_record
from tests.trainer.test_fit import SCORE, scored

SAID = {
    "checkpoint": {"every": "2 steps", "keep_last": 3, "keep_best": 1},
    "validation": {"every": "2 steps"},
    "max_steps": 6,
}


@pytest.fixture
def run(tmp_path):
    return fit(tmp_path / "run")


def parts():
    return {"model": tiny.model(), "val": tiny.data()}


def fit(folder, **more):
    return tiny.fit(folder, parts(), **{**SAID, **more})


def flip(path, file="model.safetensors"):
    data = bytearray((path / file).read_bytes())
    data[-1] ^= 1
    (path / file).write_bytes(data)


def checkpoints(run):
    return list_checkpoints(run.checkpoints)


def test_finished_run_with_a_corrupt_last_checkpoint_finishes_again(run, capsys):
    end = tiny.model()
    run.load_model(end, "last")
    flip(checkpoints(run)[-1])
    again = fit(run.path, logging={"progress": "plain"})
    said = capsys.readouterr().err
    assert "step-00000006 is damaged: model.safetensors" in said
    assert "Going back to the newest good one: step 4." in said
    assert [path.name for path in checkpoints(again)][-1] == "step-00000006"
    once_more = tiny.model()
    again.load_model(once_more, "last")
    assert torch.equal(tiny.weights(once_more), tiny.weights(end))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"progress__position": 2**39},
            "progress.position is 549755813888, and an epoch has at most",
        ),
        ({"progress__items": 0}, "progress.items is 0 after 6 steps that were taken"),
        (
            {"progress__steps_taken": 5},
            "counts has 0 skipped steps, and progress has 6 steps of which 5",
        ),
        (
            {"counts__no_items": 1},
            "counts has 1 skipped steps, and progress has 6 steps of which 6",
        ),
        (
            {"progress__position": 1},
            "progress.position is 1, and events.jsonl has 0 after step 6",
        ),
        ({"progress__epoch": 1}, "progress.epoch is 1, and events.jsonl has 2 after step 6"),
        ({"progress__epoch": 3, "progress__position": 3}, "progress.epoch is 3, and events"),
        ({"progress__items": 39.0}, "progress.items is 39.0, and events.jsonl has 40.0"),
        (
            {"progress__steps_taken": 5, "counts__overflow": 1},
            "progress.steps_taken is 5, and events.jsonl has 6 after step 6",
        ),
        ({"counts__clipped": 7}, "counts.clipped is 7, and 6 steps were taken"),
        (
            {"progress__steps_taken": 5, "counts__overflow": 1, "counts__clipped": 6},
            "counts.clipped is 6, and 5 steps were taken",
        ),
        ({"best__best": 0.1}, "best.best is 0.1, and best.latest of that step has val/loss: "),
        ({"best__best": "nan"}, "best.best is nan, and the best is always finite"),
        ({"best__since_best": 5}, "best.since_best is 5, and the latest is the best"),
        ({"progress__epoch": 2**39}, "progress.epoch is 549755813888, and it can be at most 6"),
    ],
)
def test_invalid_numbers_with_matching_hashes_are_named_and_rejected(run, capsys, changes, named):
    end = tiny.model()
    run.load_model(end, "last")
    forge_record(checkpoints(run)[-1], **changes)
    again = fit(run.path, logging={"progress": "plain"})
    said = capsys.readouterr().err
    assert f"step-00000006 is damaged: state.json: {named}" in said
    assert "Going back to the newest good one: step 4." in said
    once_more = tiny.model()
    again.load_model(once_more, "last")
    assert torch.equal(tiny.weights(once_more), tiny.weights(end))


def test_two_corrupt_checkpoints_and_the_loaded_one_are_reported_once(run, capsys):
    for path in checkpoints(run)[-2:]:
        flip(path)
    fit(run.path, logging={"progress": "plain"})
    said = capsys.readouterr().err
    assert said.count("is damaged: model.safetensors") == 2
    assert said.count("Going back to the newest good one: step 2.") == 1


def test_corrupt_checkpoint_is_set_aside_and_reported(run):
    flip(checkpoints(run)[-1])
    tiny.prepare(run.path, parts(), **SAID).close()
    assert (run.checkpoints / "damaged-step-00000006" / "model.safetensors").exists()
    told = next(each for each in run.events() if each["event"] == "fallback")
    assert (told["step"], told["damaged"]) == (4, "checkpoints/damaged-step-00000006")
    with surestep.prepare(tiny.task(**parts()), tiny.config(**SAID), run=run.path) as session:
        assert not session.finished


def test_no_file_is_moved_if_every_checkpoint_is_corrupt(run):
    for path in checkpoints(run):
        flip(path)
    before = sorted(run.checkpoints.iterdir())
    for _ in range(2):
        with pytest.raises(CheckpointError, match="has no valid checkpoint"):
            tiny.prepare(run.path, parts(), **SAID)
    assert sorted(run.checkpoints.iterdir()) == before


def test_run_without_its_checkpoints_does_not_start_from_scratch(run):
    shutil.rmtree(run.checkpoints)
    with pytest.raises(CheckpointError, match="had checkpoints, and has none now"):
        tiny.prepare(run.path, parts(), **SAID)


def test_valid_checkpoint_of_a_different_model_causes_no_fallback(run):
    other = {**parts(), "model": torch.nn.Sequential(torch.nn.Linear(4, 3))}
    with pytest.raises(RunError, match="a checkpoint of one does not fit the other"):
        tiny.prepare(run.path, other, **SAID)
    with pytest.raises(CheckpointError, match=r"but \(3, 4\) here"):
        run.load_model(other["model"], "last")
    assert len(checkpoints(run)) == len(list(run.checkpoints.iterdir()))


def test_last_valid_checkpoint_is_loaded_and_the_corrupt_one_reported(run, caplog):
    flip(checkpoints(run)[-1])
    with caplog.at_level(logging.WARNING, "surestep"):
        assert run.load_model(tiny.model(), "last").step == 4
    assert "step-00000006 is damaged" in caplog.text
    caplog.clear()
    (checkpoints(run)[-1] / "state.json").unlink()
    with caplog.at_level(logging.WARNING, "surestep"):
        last = run.last
    assert last is not None
    assert last.step == 4
    assert "state.json" in caplog.text


@pytest.mark.parametrize("file", ["model.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["bit", "missing"])
def test_corrupt_best_checkpoint_is_reported_and_not_substituted(run, file, how):
    best = run.best
    assert best is not None
    flip(best.path, file) if how == "bit" else (best.path / file).unlink()
    model = tiny.model(seed=5)
    before = tiny.weights(model)
    with pytest.raises(
        CorruptCheckpointError, match=rf"{best.path.name} is damaged: {file}.*--which last"
    ):
        run.load_model(model)
    assert torch.equal(tiny.weights(model), before)
    with pytest.raises(CorruptCheckpointError, match=file):
        evaluate_run(run, tiny.task(**parts()), tiny.config(**SAID), split="val", which="best")


def test_corrupt_checkpoint_that_cannot_be_the_best_or_the_last_is_no_obstacle(tmp_path, caplog):
    """The metric is best at step 4 of 2, 4 and 6."""
    options = {**SAID, "validation": {"every": "2 steps", **SCORE}}
    run = tiny.fit(tmp_path, scored([0.5, 0.9, 0.7]), **options)
    assert run.best.step == 4
    (run.folder_of(2) / "state.json").unlink()
    with caplog.at_level(logging.WARNING, "surestep"):
        assert (run.best.step, run.last.step) == (4, 6)
    assert caplog.text == ""
    (run.folder_of(4) / "state.json").unlink()
    assert run.last.step == 6
    with pytest.raises(CorruptCheckpointError, match=r"step-00000004 is damaged: state\.json"):
        _ = run.best


def test_best_checkpoint_of_a_run_without_an_evaluation_is_the_last(tmp_path):
    parts = {"val": tiny.data(4)}
    with tiny.prepare(tmp_path, parts) as session:
        for result in session.steps():
            session.save()
            if result.step == 2:
                break
    assert session.run.monitor == ("val/loss", "min")
    assert session.run.best.step == session.run.load_model(tiny.model()).step == 2


def test_nothing_is_loaded_if_every_checkpoint_is_corrupt(run):
    for path in checkpoints(run):
        (path / "manifest.json").unlink()
    for which in ("best", "last", "average"):
        with pytest.raises(CheckpointError, match="no valid checkpoint"):
            Run(run.path).load_model(tiny.model(), which)
