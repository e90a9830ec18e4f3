"""A new run that starts from a checkpoint of a different run."""

import pytest
import torch

import surestep
from surestep.base.errors import CheckpointError, ConfigError, RunError
from surestep.record.run import Run
from surestep.trainer.session import Session
from tests import tiny
from tests.trainer.test_fit import SCORE, scored


@pytest.fixture
def first(tmp_path):
    return tiny.fit(tmp_path / "first", {"val": tiny.data(4)}, epochs=2)  # saved at steps 3 and 6


def fork_run(tmp_path, which, name="second", **said):
    task = tiny.task(val=tiny.data(4))
    source = f"{tmp_path / 'first'}@{which}"
    return surestep.prepare(task, tiny.config(**said), run=tmp_path / name, from_=source)


@pytest.mark.parametrize(("which", "step"), [("3", 3), ("last", 6), ("best", 6)])
def test_fork_starts_from_the_state_of_its_checkpoint(tmp_path, first, which, step):
    with fork_run(tmp_path, which, epochs=3) as session:
        assert session.state.progress.step == step
        assert session.state.optimizer.state


def test_fork_with_the_same_config_equals_the_resumed_run(tmp_path, first):
    task = tiny.task(val=tiny.data(4))
    source = f"{first.path}@3"
    surestep.Trainer(task, tiny.config(epochs=2), run=tmp_path / "same", from_=source).fit()
    whole, other = tiny.model(seed=1), tiny.model(seed=2)
    first.load_model(whole, "last")
    Run(tmp_path / "same").load_model(other, "last")
    assert torch.equal(tiny.weights(whole), tiny.weights(other))


def test_fork_can_have_a_different_config_and_reports_the_differences(tmp_path, first):
    with fork_run(tmp_path, 3, epochs=3, optim={"lr": 0.5}) as session:
        next(session.steps())
    events = {event["event"]: event for event in Run(tmp_path / "second").events()}
    assert (events["branch"]["run"], events["branch"]["step"]) == (str(first.path), 3)
    rows = {row["name"]: row["effect"] for row in events["changes"]["changes"]}
    assert rows == {"epochs": "safe", "optim.lr": "allowed"}
    known = Run(tmp_path / "second").config["from"]
    assert known == {"run": str(first.path), "which": "3", "step": 3}


def test_fork_preserves_its_first_checkpoint(tmp_path, first):
    with fork_run(tmp_path, 3, epochs=3) as session:
        assert session.run.last.step == 3


def test_fork_resumes_in_its_folder(tmp_path, first):
    with fork_run(tmp_path, 3, epochs=3) as session:
        next(session.steps())
        session.save()
    for source in (3, None):  # the same command again, and one without a source
        task, said = tiny.task(val=tiny.data(4)), tiny.config(epochs=3)
        from_ = None if source is None else f"{first.path}@{source}"
        with surestep.prepare(task, said, run=tmp_path / "second", from_=from_) as session:
            assert session.state.progress.step == 4
    assert Run(tmp_path / "second").config["from"]["step"] == 3


@pytest.mark.parametrize("which", ["3", "best", "folder"])
def test_same_command_resumes_a_fork_whatever_names_its_source(tmp_path, first, which):
    """In the folder are steps that were taken after it began."""
    step = 3 if which == "3" else 6
    source = str(first.folder_of(step)) if which == "folder" else f"{first.path}@{which}"
    parts, options = {"val": tiny.data(4)}, {"epochs": 3, "validation": {"every": "9 epochs"}}
    for begins, named in enumerate((source, source, f"{first.path}@{step}"), step):
        task, config = tiny.task(**parts), tiny.config(**options)
        with surestep.prepare(task, config, run=tmp_path / "new", from_=named) as session:
            assert session.state.progress.step == begins
            next(session.steps())
            session.save()
    known = {"run": str(first.path), "which": str(step) if which == "folder" else which}
    assert Run(tmp_path / "new").config["from"] == {**known, "step": step}
    with pytest.raises(RunError, match=rf"starts from .*first@{step}, not from"):
        fork_run(tmp_path, 9 - step, name="new", **options)


@pytest.mark.parametrize("is_named", [True, False])
def test_fork_that_was_killed_before_its_first_checkpoint_starts_from_its_source(
    tmp_path, first, monkeypatch, is_named
):
    with monkeypatch.context() as killed:
        killed.setattr(Session, "save", lambda session: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fork_run(tmp_path, 3, epochs=3)
    failed = Run(tmp_path / "second")
    assert failed.status["reason"] == "ZeroDivisionError: division by zero"
    assert {"branch", "changes"} <= {event["event"] for event in failed.events()}
    assert (failed.path / "plan.json").exists()
    task, source = tiny.task(val=tiny.data(4)), f"{first.path}@3" if is_named else None
    with surestep.prepare(
        task, tiny.config(epochs=3), run=tmp_path / "second", from_=source
    ) as session:
        assert session.state.progress.step == session.run.last.step == 3
    assert Run(tmp_path / "second").config["from"]["step"] == 3


def test_folder_of_a_different_run_is_not_a_fork(tmp_path, first):
    fork_run(tmp_path, 3, epochs=3).close()
    with pytest.raises(RunError, match=r"starts from .*first@3, not from .*first@6"):
        fork_run(tmp_path, 6, epochs=3)
    with pytest.raises(RunError, match="started from scratch, not from"):
        fork_run(tmp_path, 3, name="first", epochs=2)


def test_missing_step_is_rejected_with_the_existing_steps(tmp_path, first):
    with pytest.raises(CheckpointError, match=r"\b3, 6\b"):
        fork_run(tmp_path, 5, epochs=3)
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("which", ["newest", "", "-1"])
def test_source_that_is_not_a_checkpoint_is_rejected(tmp_path, first, which):
    with pytest.raises(ConfigError, match="after the @ comes a step, best or last"):
        fork_run(tmp_path, which, epochs=3)


def test_run_without_a_step_is_rejected_as_source(tmp_path, first):
    with pytest.raises(ConfigError, match="first@last"):
        surestep.prepare(tiny.task(), tiny.config(), run=tmp_path / "b", from_=str(first.path))


def test_fork_without_remaining_steps_is_rejected(tmp_path, first):
    with pytest.raises(RunError, match=r"the run would end at step 6\. Set more: --epochs"):
        fork_run(tmp_path, 6, epochs=2)


def test_fork_with_a_model_of_different_shape_is_rejected(tmp_path, first):
    wider = torch.nn.Linear(4, 3)
    with pytest.raises(RunError, match="a checkpoint of one does not fit the other"):
        surestep.prepare(
            tiny.task(model=wider), tiny.config(), run=tmp_path / "b", from_=f"{first.path}@3"
        )


def scored_fork(tmp_path, which, values, **said):
    """Fork a run whose metric was 0.9, 0.1 and 0.3 at steps 3, 6 and 9."""
    config = {"validation": SCORE, "checkpoint": {"every": "9 epochs", "keep_last": 1}, **said}
    parent = tiny.fit(tmp_path / "first", scored([0.9, 0.1, 0.3]), epochs=3, **config)
    assert parent.best.step == 3
    source = f"{parent.path}@{which}"
    longer = tiny.config(epochs={"last": 3, "best": 1}[which] + len(values), **config)
    task = tiny.task(**scored(values))
    return surestep.Trainer(task, longer, run=tmp_path / "second", from_=source)


def test_fork_has_a_best_checkpoint_of_its_own(tmp_path):
    run = scored_fork(tmp_path, "last", [0.5, 0.7, 0.6, 0.2]).fit()
    assert (run.best.step, run.best.metrics["val/score"]) == (15, pytest.approx(0.7))
    assert [each.step for each in run.verify()] == [15, 21]


def test_best_metric_of_a_fork_starts_from_the_metric_of_its_source(tmp_path):
    with scored_fork(tmp_path, "last", [0.2]).session as session:
        standing = session.state.best
        assert (standing.best, standing.best_step) == (pytest.approx(0.3), 9)
        assert standing.since_best == 0


def test_fork_from_the_best_checkpoint_keeps_it_as_best(tmp_path):
    run = scored_fork(tmp_path, "best", [0.5, 0.7]).fit()
    assert (run.best.step, run.best.metrics["val/score"]) == (3, pytest.approx(0.9))


def test_early_stop_patience_of_a_fork_starts_from_zero(tmp_path):
    said = {"early_stop": {"patience": 3}}
    run = scored_fork(tmp_path, "last", [0.4, 0.3, 0.2, 0.1, 0.0], **said).fit()
    assert run.status["step"] == 9 + 3 * 4
