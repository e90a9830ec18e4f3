from pathlib import Path

import pytest
from torch import nn

import surestep
from surestep.base.errors import ConfigError, RunError, TaskError
from tests import tiny

CONFIG = surestep.Config(epochs=1, batch_size=10)


class Watch(surestep.Callback):
    """A callback."""


class Stranger:
    """An object that is not a callback."""


class Net(nn.Module):
    """A model whose class needs an argument."""

    def __init__(self, width):
        super().__init__()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (tiny.model(), "task is a Sequential, not a Task. Pass surestep.Task(model=net"),
        (Net, "task is the class Net, not a Task. Pass surestep.Task(model=net"),
        (tiny.task, "task is the function task, not a Task. Call it, and pass the Task that"),
        (None, "task is None, not a Task. Pass surestep.Task(model=net, loss=..., train=(x, y))."),
    ],
    ids=["model", "class", "function", "None"],
)
@pytest.mark.parametrize("start", [surestep.Trainer, surestep.prepare])
def test_object_that_is_not_a_task_is_named_in_the_error(tmp_path, start, task, message):
    with pytest.raises(TaskError) as caught:
        start(task, CONFIG, run=tmp_path / "r")
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("run", 5, "run=5 is not a path. Pass the run folder: run='runs/mine'."),
        ("run", True, "run=True is not a path. Pass the run folder: run='runs/mine'."),
        ("resume", None, "resume=None is not 'auto', 'must' or 'never'. 'auto', the defau"),
        ("resume", Path("runs/a"), f"resume={Path('runs/a')!r} is not 'auto', 'must' or 'never'."),
        ("callbacks", Watch(), "callbacks is a Watch, not a list. Pass objects: callbacks=["),
        (
            "callbacks",
            None,
            "callbacks is None, not a list. Pass objects: callbacks=[MyCallback()].",
        ),
        ("callbacks", "x", "callbacks is 'x', not a list."),
        ("callbacks", [Watch], "callbacks has the class Watch, not an object of a surestep.Callb"),
        ("callbacks", [Stranger()], "callbacks has a Stranger, not an object of a surestep.Callb"),
        ("callbacks", [print], "callbacks has the function print, not an object of a surestep.Ca"),
        ("config", {"epochs": 1}, "config is a dict. Pass surestep.Config(epochs=10, ...)."),
    ],
)
def test_argument_of_the_wrong_type_is_named_with_the_accepted_types(
    tmp_path, argument, value, message
):
    given = {"config": CONFIG, "run": tmp_path / "r", argument: value}
    with pytest.raises(ConfigError) as caught:
        surestep.Trainer(tiny.task(), **given)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "r").exists()


def test_valid_arguments_are_accepted(tmp_path):
    for number, run in enumerate((tmp_path / "a", str(tmp_path / "b"))):
        callbacks = ([Watch()], (Watch(),))[number]
        surestep.Trainer(tiny.task(), CONFIG, run=run, callbacks=callbacks).close()
        assert (Path(run) / "config.json").exists()


def test_inputs_and_targets_as_two_arguments_are_rejected():
    x, y = tiny.data()
    for train, val in ((x, y), (x.numpy(), y.numpy())):
        with pytest.raises(TaskError, match=r"two arrays of 20 rows.*train=\(X, Y\)"):
            surestep.Task(tiny.model(), nn.CrossEntropyLoss(), train, val)
    surestep.Task(tiny.model(), nn.MSELoss(), x, x, inputs=lambda x: (x, x))  # an autoencoder


def test_model_class_that_needs_arguments_is_named_in_the_error(tmp_path):
    task = tiny.task(model=Net)
    with pytest.raises(TaskError) as caught:
        surestep.Trainer(task, CONFIG, run=tmp_path / "r")
    assert str(caught.value).startswith("model=Net is a class, and Net() failed: ")
    assert "Pass an object, model=Net(...), or a function that returns one." in str(caught.value)


def test_closed_session_names_the_way_to_evaluate_its_checkpoints(tmp_path):
    trainer = surestep.Trainer(tiny.task(val=tiny.data()), CONFIG, run=tmp_path / "r")
    trainer.fit()
    with pytest.raises(RunError, match=r"trainer\.evaluate\('val'\) evaluates its checkpoints"):
        trainer.session.evaluate()
    assert set(trainer.evaluate("val")) == {"val/loss"}


@pytest.mark.parametrize(
    "group", [{"params": [], "lr": 0.5}, {"pattern": "0.*", "lr": 0.5, "betas": 1}]
)
def test_torch_param_group_is_rejected_with_its_replacement(group):
    with pytest.raises(ConfigError) as caught:
        surestep.Optim(groups=[group])
    instead = "surestep.ParamGroup('head.*', lr=1e-3)"
    assert f"Use groups=[{instead}]" in str(caught.value)
    assert surestep.Optim(groups=[eval(instead)]).groups


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("logger", True, "Set it in the Config: logging.trackers='tensorboard', 'mlflow' or 'wan"),
        (
            "loggers",
            ["wandb"],
            "Set it in the Config: logging.trackers='tensorboard', 'mlflow' or ",
        ),
        ("logger", False, "Use nothing, and leave it out: it is off by default."),
        ("loggers", [], "Use nothing, and leave it out: it is off by default."),
        ("report_to", "none", "Use nothing, and leave it out: it is off by default."),
        ("fast_dev_run", False, "Use nothing, and leave it out: it is off by default."),
        ("profiler", None, "Use nothing, and leave it out: it is off by default."),
        ("early_stopping", True, "Set it in the Config: early_stop.patience=5."),
        ("early_stopping", 3, "Set it in the Config: early_stop.patience=3."),
        ("gradient_clipping", True, "Set it in the Config: max_grad_norm=1.0."),
        ("lr", 0.1, "Set it in the Config: optim.lr=0.1 or average.lr=0.1."),
        ("num_workers", 2, "Set it in the Config: data.num_workers=2."),
        ("shuffle", True, "Set it in the Config: data.shuffle=True."),
        ("max_epochs", 3, "Set it in the Config: epochs=3."),
        ("gradient_clip_val", 0.5, "Set it in the Config: max_grad_norm=0.5."),
        ("epochs", 3, "Set it in the Config: Config(epochs=...)."),
        ("optim", surestep.Optim(), "Set it in the Config: Config(optim=...)."),
        ("fast_dev_run", True, "Use surestep train RECIPE --dry-run."),
    ],
)
@pytest.mark.parametrize("start", [surestep.Trainer, surestep.prepare, surestep.Task])
def test_argument_that_is_an_option_is_named_with_where_to_set_it(
    tmp_path, start, argument, value, message
):
    given = (tiny.model(), "mse") if start is surestep.Task else (tiny.task(), CONFIG)
    with pytest.raises((ConfigError, TaskError)) as caught:
        start(*given, **{argument: value})
    called = f"{start.__name__}() has no argument {argument!r}. "
    assert str(caught.value).startswith(called + message)


def test_misspelled_argument_is_still_named_with_a_similar_one():
    with pytest.raises(ConfigError, match="Did you mean 'callbacks'"):
        surestep.Trainer(tiny.task(), CONFIG, callback_list=[])
