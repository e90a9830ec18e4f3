"""A relative run folder stays the same folder when the script changes its directory."""

import os

import pytest
import torch

import surestep
from surestep.base.errors import NonFiniteError
from surestep.record.run import Run
from tests import tiny


class Move(surestep.Callback):
    """Changes the working directory after some step."""

    def __init__(self, folder, at=2):
        self.folder, self.at = folder, at

    def on_step(self, state, result):
        if state.progress.step == self.at:
            os.chdir(self.folder)


@pytest.fixture
def other(tmp_path, monkeypatch):
    """A folder to move to; the script starts in another one."""
    for name in ("start", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "start")
    return tmp_path / "other"


def trainer(callbacks=(), run="runs/mine", **parts):
    task = tiny.task(**{"val": tiny.data(seed=1), **parts})
    config = tiny.config(
        checkpoint={"every": "1 step", "keep_last": 9}, logging=parts.pop("logging", {})
    )
    return surestep.Trainer(task, config, run=run, callbacks=callbacks)


def check(run, other):
    """Check that everything was written to the folder where the script started."""
    assert run.path == other.parent / "start" / "runs" / "mine"
    assert [path.name[-1] for path in sorted(run.checkpoints.iterdir())] == list("123456")
    assert (run.status["status"], run.last.step) == ("finished", 6)
    run.load_model(tiny.model())
    assert [event["event"] for event in run.events()][-1] == "end"
    assert not list(other.iterdir())


def test_callback_can_change_the_directory(other):
    made = trainer([Move(other)])
    run = made.fit()
    check(run, other)
    assert made.evaluate("val").keys() == {"val/loss"}
    assert trainer(run=run.path).fit().last.step == 6


def test_profile_is_written_to_the_run(other):
    config = tiny.config(profile="3:5")
    run = surestep.Trainer(tiny.task(), config, run="runs/mine", callbacks=[Move(other)]).fit()
    assert list((run.path / "profile").iterdir())
    assert not list(other.iterdir())


@pytest.mark.parametrize("init", ["first.pt", "runs/first"])
def test_initial_weights_are_those_where_the_task_was_made(other, init):
    def build():
        os.chdir(other)
        return tiny.model(seed=2)

    torch.save(tiny.model(seed=1).state_dict(), "first.pt")
    first = tiny.task(model=tiny.model(seed=1), init="first.pt")
    surestep.Trainer(first, tiny.config(max_steps=1), run="runs/first").fit()
    made = trainer(model=build, init=init)
    expected = tiny.model(seed=1) if init != "runs/first" else first.model
    made.session.close()
    weights = made.session.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in expected.state_dict().items())


def test_parent_is_that_where_the_script_started(other):
    def build():
        os.chdir(other)
        return tiny.model()

    trainer().fit()
    config = tiny.config(max_steps=7)
    task = tiny.task(model=build, val=tiny.data(seed=1))
    made = surestep.Trainer(task, config, run="runs/child", from_="runs/mine@last")
    made.session.close()
    assert made.session.state.progress.step == 6


def test_directory_can_change_before_fit(other):
    made = trainer()
    os.chdir(other)
    check(made.fit(), other)


def test_model_function_can_change_the_directory(other):
    def build():
        os.chdir(other)
        return tiny.model()

    check(trainer(model=build).fit(), other)


def test_default_folder_is_where_the_script_started(other):
    def build():
        os.chdir(other)
        return tiny.model()

    run = trainer(model=build, run=None).fit()
    assert run.path.parent == other.parent / "start" / "runs"
    assert not list(other.iterdir())


def test_folder_is_shown_as_it_was_given_until_the_directory_changes(other):
    run = trainer().fit()
    assert str(run.path) == "runs/mine"
    os.chdir(other)
    assert str(run.path) == str(other.parent / "start/runs/mine")
    os.chdir(other.parent / "start")
    assert str(run.path) == "runs/mine"


def test_open_run_stays_the_same_run(other):
    first, net = Run(trainer().fit().path), tiny.model()
    os.chdir(other)
    trainer(run="runs/mine", train=tiny.data(seed=3)).fit()
    first.load_model(net, "last")
    again = tiny.model()
    Run(other.parent / "start/runs/mine").load_model(again, "last")
    assert torch.equal(tiny.weights(net), tiny.weights(again))


def test_incident_mirror_and_tensorboard_files_are_in_the_run_folder(other):
    x, y = tiny.data()
    x[15] = torch.nan
    task = tiny.task(train=(x, y))
    mirror = other.parent / "mirror"
    config = tiny.config(
        data={"shuffle": False},
        logging={"trackers": ["tensorboard"]},
        checkpoint={"mirror": str(mirror), "every": "1 step"},
    )
    made = surestep.Trainer(task, config, run="runs/mine", callbacks=[Move(other, at=1)])
    with pytest.raises(NonFiniteError):
        made.fit()
    folder = other.parent / "start/runs/mine"
    assert {"incidents", "tensorboard"} <= {path.name for path in folder.iterdir()}
    assert (mirror / "checkpoints/step-00000001").is_dir()
    assert not list(other.iterdir())
