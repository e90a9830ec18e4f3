import re
import sys
import traceback
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import CheckpointError, RunError, TaskError
from surestep.record.run import Run
from surestep.trainer.planning import TaskOrigin, plan_task
from surestep.trainer.run_folder import default_folder
from tests import tiny

X, Y = tiny.data()


def prepare(folder, resume="auto", parts=None, **said):
    task = tiny.task(**(parts or {}))
    return surestep.prepare(task, tiny.config(**said), run=folder, resume=resume)


def unfinished(folder, steps=2, **said):
    with prepare(folder, **said) as session:
        while session.state.progress.step < steps:
            next(session.steps())
        session.save()


def spoken(capsys):
    return capsys.readouterr().err


PLAIN = {"logging": {"progress": "plain"}}


def test_folder_without_a_run_starts_one(tmp_path, capsys):
    with prepare(tmp_path / "deep" / "run", **PLAIN) as session:
        assert session.state.progress.step == 0
        assert not session.finished
    assert "Going on" not in spoken(capsys)


def test_unfinished_run_resumes_and_reports_it(tmp_path, capsys):
    unfinished(tmp_path)
    with prepare(tmp_path, **PLAIN) as session:
        assert session.state.progress.step == 2
        assert [result.step for result in session.steps()] == [3, 4, 5, 6]
    assert f"Resuming {tmp_path} from step 2, epoch 1." in spoken(capsys)
    assert "resume" in [event["event"] for event in Run(tmp_path).events()]


def test_run_resumed_after_its_last_step_names_no_epoch(tmp_path, capsys):
    parts, stop = {"val": tiny.data(8)}, {"early_stop": {"patience": 2}}
    tiny.fit(tmp_path, parts)
    prepare(tmp_path, parts=parts, **stop, **PLAIN).close()
    assert f"Resuming {tmp_path} from step 6, which is the last." in spoken(capsys)


def test_finished_run_does_nothing_and_reports_it(tmp_path, capsys):
    tiny.fit(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock"}
    model = tiny.model(seed=9)
    trainer = surestep.Trainer(tiny.task(model=model), tiny.config(**PLAIN), run=tmp_path)
    run = trainer.fit()
    assert f"{tmp_path} is finished: 6 steps are done." in spoken(capsys)
    assert {path: path.read_bytes() for path in before} == before
    saved = tiny.model(seed=8)
    run.load_model(saved, "last")
    assert torch.equal(tiny.weights(saved), tiny.weights(model))


def test_different_config_is_rejected_with_a_table_of_differences(tmp_path):
    unfinished(tmp_path, optim={"lr": 0.1})
    with pytest.raises(RunError) as caught:
        prepare(tmp_path, optim={"lr": 0.2}, seed=3)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{tmp_path} has a run with a different config:"
    assert lines[1].startswith("  optim.lr  0.1  ->  0.2  blocked: each update would differ")
    assert lines[2].startswith("  seed      0    ->  3    blocked: data order, augmentation")
    assert "--run" in lines[3]
    assert lines[3].endswith("--allow optim.lr,seed (allow=('optim.lr', 'seed') in Python).")


def test_run_killed_before_its_first_checkpoint_starts_from_scratch(tmp_path):
    with prepare(tmp_path) as session:
        next(session.steps())
        first = tiny.weights(session.model)
    with prepare(tmp_path) as session:
        next(session.steps())
        assert torch.equal(tiny.weights(session.model), first)


@pytest.mark.parametrize("is_saved", [True, False])
def test_resume_never_rejects_a_folder_that_contains_a_run(tmp_path, is_saved):
    unfinished(tmp_path) if is_saved else prepare(tmp_path).close()
    with pytest.raises(RunError, match="has a run already, and resume is 'never'"):
        prepare(tmp_path, resume="never")
    prepare(tmp_path / "other", resume="never").close()


def test_resume_must_rejects_a_folder_without_a_run(tmp_path):
    says = r"no checkpoint to resume .* is 'must'\. To start a new run, use --resume auto"
    with pytest.raises(CheckpointError, match=says):
        prepare(tmp_path / "run", resume="must")
    assert not (tmp_path / "run").exists()


def test_resume_must_resumes_a_run(tmp_path):
    unfinished(tmp_path)
    with prepare(tmp_path, resume="must") as session:
        assert session.state.progress.step == 2


def test_resume_must_rejects_a_folder_with_only_checkpoints(tmp_path):
    unfinished(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises((CheckpointError, RunError)):
        prepare(tmp_path, resume="must").close()


def test_unknown_value_of_resume_is_rejected(tmp_path):
    with pytest.raises(surestep.SurestepError, match="resume='allways'"):
        prepare(tmp_path, resume="allways").close()


def test_folder_is_locked_while_its_session_is_open(tmp_path):
    with prepare(tmp_path), pytest.raises(RunError, match="in use by another session"):
        prepare(tmp_path)
    prepare(tmp_path).close()


def test_model_built_by_a_function_is_built_after_seeding(tmp_path):
    def build():
        return nn.Linear(4, 3)

    weights = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.rand(7)
        with prepare(tmp_path / name, parts={"model": build}, seed=seed) as session:
            weights.append(tiny.weights(session.model))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_new_folder_is_created_if_no_folder_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = default_folder("digits")
    assert re.fullmatch(r"runs/digits-\d{8}-\d{6}", str(first))
    module = sys.modules["surestep.trainer.run_folder"]
    monkeypatch.setattr(module, "time", SimpleNamespace(strftime=lambda _: first.name[7:]))
    others = [default_folder("digits").name for _ in range(2)]
    assert others == [f"{first.name}-2", f"{first.name}-3"]


def test_plan_shows_the_source_of_each_option(tmp_path):
    origin = TaskOrigin(set_options={"optim.lr": "command line"}, parameters={"hidden": 3})
    task, config = tiny.task(), tiny.config(optim={"lr": 0.5})
    with surestep.prepare(task, config, run=tmp_path, origin=origin) as session:
        assert session.plan.reason("optim.lr") == "set on the command line"
        assert session.run.config["task"] == {"hidden": 3}


@pytest.mark.parametrize(
    ("build", "parts", "reason"),
    [
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), {}, "batch statistics"),
        (lambda: tiny.model(dropout=0.1), {}, "dropout draws"),
        (lambda: nn.Linear(4, 3), {"loss_is_separable": False}, "the Task says"),
        (lambda: nn.Linear(4, 3), {}, "the same update as without"),
    ],
    ids=["BatchNorm", "dropout", "declared", "none"],
)
def test_plan_reports_what_changes_the_numbers_of_a_split_batch(build, parts, reason):
    planned = plan_task(tiny.task(model=build(), **parts), tiny.config(micro_batch_size=4))
    assert reason in planned.plan.reason("batch_layout")


def test_dropout_of_zero_is_not_reported():
    planned = plan_task(tiny.task(model=tiny.model(dropout=0.0)), tiny.config(micro_batch_size=4))
    assert planned.plan.reason("batch_layout") == "the same update as without splitting"


def test_error_that_you_must_mend_has_a_short_traceback(tmp_path):
    with pytest.raises(TaskError) as raised:
        surestep.Trainer(
            tiny.task(loss=nn.CrossEntropyLoss(weight=torch.ones(9))),
            tiny.config(),
            run=tmp_path / "run",
        )
    files = [entry.path.name for entry in raised.traceback]
    assert files == ["test_prepare.py", "trainer.py", "prepare.py"]


def test_error_in_your_model_keeps_its_traceback(tmp_path):
    class Failing(nn.Linear):
        def forward(self, x):
            raise ValueError("no forward")

    with pytest.raises(TaskError) as raised:
        surestep.prepare(tiny.task(model=Failing(4, 3)), tiny.config(), run=tmp_path / "run")
    frames = traceback.extract_tb(raised.value.__cause__.__traceback__)
    assert [frame.name for frame in frames][-1] == "forward"
