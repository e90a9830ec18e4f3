"""Resume after a change: the table of effects, what can be allowed, what is recorded."""

import json
import sys
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.base.errors import ConfigError, RunError
from surestep.record.run import Run
from tests import tiny
from tests.trainer.test_fit import SCORE, scored

PLAIN = {"logging": {"progress": "plain"}}


def prepare(folder, parts=None, *, allow=(), **said):
    return surestep.prepare(
        tiny.task(**(parts or {})), tiny.config(**said), run=folder, allow=allow
    )


def unfinished(folder, parts=None, steps=2, **said):
    with prepare(folder, parts, **said) as session:
        while session.state.progress.step < steps:
            next(session.steps())
        session.save()


def resume_run(folder, parts=None, **more):
    with prepare(folder, parts, **more) as session:
        assert session.state.progress.step == 2
    return [event for event in Run(folder).events() if event["event"] == "changes"]


def recorded(events):
    return [(row["name"], row["effect"]) for event in events for row in event["changes"]]


@pytest.mark.parametrize("name", ["optim.lr", "batch_size", "seed"])
def test_damaged_name_in_the_decisions_of_a_run_names_its_config(tmp_path, name):
    unfinished(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace(f'"{name}": ', f'"{name}x": '))
    with pytest.raises(
        RunError, match=rf"config\.json has '{name}x', which is not an option"
    ) as found:
        prepare(tmp_path)
    assert f"Did you mean '{name}'" in str(found.value)
    assert "--allow" not in str(found.value)


class Restart(surestep.Callback):
    """Clears the state of the optimizer after step 10."""

    def on_step(self, state, result):
        if result.step == 10:
            state.optimizer.state.clear()


class WarmStart(surestep.Callback):
    """Gives Adam the state of an earlier training run before the first step."""

    def on_start(self, state):
        if state.progress.step:
            return
        for parameter in state.model.parameters():
            state.optimizer.state[parameter] = {
                "step": torch.tensor(1000.0),
                "exp_avg": torch.full_like(parameter, 0.01),
                "exp_avg_sq": torch.full_like(parameter, 0.01),
            }


@pytest.mark.parametrize("callback", [Restart, WarmStart])
def test_run_whose_callback_writes_the_optimizer_state_resumes(tmp_path, callback):
    def trained(folder, last):
        options = tiny.config(max_steps=12)
        with surestep.prepare(tiny.task(), options, run=folder, callbacks=[callback()]) as session:
            while session.state.progress.step < last:
                next(session.steps())
            session.save()
            return tiny.weights(session.model)

    whole = trained(tmp_path / "whole", 12)
    trained(tmp_path / "run", 11)
    assert torch.equal(trained(tmp_path / "run", 12), whole)


def test_resume_without_differences_prints_no_changes(tmp_path, capsys):
    unfinished(tmp_path, **PLAIN)
    assert resume_run(tmp_path, **PLAIN) == []
    assert "differs" not in capsys.readouterr().err


def test_safe_change_resumes_and_is_shown(tmp_path, capsys):
    unfinished(tmp_path)
    events = resume_run(tmp_path, checkpoint={"every": "3 steps"}, **PLAIN)
    assert ("checkpoint.every", "safe") in recorded(events)
    assert "checkpoint.every  1 epoch  ->  3 steps  safe: " in capsys.readouterr().err


def test_not_bitwise_change_resumes_and_is_shown_and_recorded(tmp_path, capsys):
    unfinished(tmp_path, **PLAIN)
    events = resume_run(tmp_path, micro_batch_size=4, **PLAIN)
    assert ("micro_batch_size", "not bitwise") in recorded(events)
    row = "micro_batch_size       8  ->  4  not bitwise: sums and dropout"
    assert row in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("machine", "torch", "1.0"), ("machine", "threads", 99), ("machine", "device", "cpu (old)")],
)
def test_different_machine_is_detected(tmp_path, part, name, value):
    unfinished(tmp_path)
    path = tmp_path / "config.json"
    known = json.loads(path.read_text())
    known[part][name] = value
    path.write_text(json.dumps(known))
    assert recorded(resume_run(tmp_path)) == [(name, "not bitwise")]


def imports(monkeypatch, folder, text, names):
    """Act as a process that has imported these modules."""
    for name in names:
        path = folder / f"{name}.py"
        path.write_text(text)
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)


def test_changed_module_that_a_recipe_imports_is_reported(tmp_path, monkeypatch):
    imports(monkeypatch, tmp_path, "x = 1", ["my_model", "my_data"])
    unfinished(tmp_path / "run")
    imports(monkeypatch, tmp_path, "x = 2", ["my_model", "my_plots"])
    assert recorded(resume_run(tmp_path / "run")) == [("code of my_model", "not bitwise")]
    assert resume_run(tmp_path / "run")[1:] == []  # the run has adopted it


@pytest.mark.parametrize(
    ("parts", "said", "name"),
    [
        ({}, {"optim": {"lr": 0.5}}, "optim.lr"),
        ({}, {"schedule": {"warmup": "4 steps"}}, "schedule.warmup"),
        ({}, {"seed": 4}, "seed"),
        ({"train": tiny.data(seed=7)}, {}, "data"),
        ({"train": tiny.data(19)}, {}, "data"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, {}, "loss"),
        ({"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3]))}, {}, "loss"),
        ({"loss": "focal"}, {}, "loss"),
    ],
)
def test_change_of_the_run_is_rejected_unless_allowed(tmp_path, parts, said, name):
    unfinished(tmp_path)
    with pytest.raises(RunError, match=f"--allow {name} ") as caught:
        prepare(tmp_path, parts, **said)
    assert "  blocked: " in str(caught.value)
    events = resume_run(tmp_path, parts, allow=(name,), **said)
    assert [effect for _, effect in recorded(events)] == ["allowed"]
    assert len(resume_run(tmp_path, parts, **said)) == 1  # the run has adopted it


@pytest.mark.parametrize(("samples", "is_mentioned"), [(20, True), (19, False)])
def test_error_for_other_samples_mentions_random_data(tmp_path, samples, is_mentioned):
    unfinished(tmp_path)
    with pytest.raises(RunError) as caught:
        prepare(tmp_path, {"train": tiny.data(samples, seed=7)})
    sentence = "If the script creates the data at random, seed it: torch.manual_seed(0). To resume"
    assert (sentence in str(caught.value)) == is_mentioned


def test_every_rejected_change_must_be_allowed_by_name(tmp_path):
    unfinished(tmp_path)
    with pytest.raises(RunError, match="--allow seed "):
        prepare(tmp_path, optim={"lr": 0.5}, seed=4, allow=("optim.lr",))


def test_config_group_can_be_allowed_by_its_name(tmp_path):
    unfinished(tmp_path)
    events = resume_run(tmp_path, optim={"lr": 0.5, "weight_decay": 0.3}, allow=("optim",))
    assert {effect for _, effect in recorded(events)} == {"allowed"}


def test_allowed_change_of_the_data_does_not_allow_a_change_of_the_order(tmp_path):
    unfinished(tmp_path)
    with pytest.raises(RunError, match=r"--allow data\.shuffle "):
        prepare(tmp_path, data={"shuffle": False}, allow=("data",))


def test_model_of_a_different_shape_cannot_be_allowed(tmp_path):
    unfinished(tmp_path)
    wider = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
    with pytest.raises(RunError, match="a checkpoint of one does not fit the other") as caught:
        prepare(tmp_path, {"model": wider}, allow=("model",))
    assert "--allow" not in str(caught.value)


def test_run_resumes_at_its_position_with_a_shorter_or_a_longer_epoch(tmp_path, capsys):
    """After 5 batches of an epoch, with 2 and 7 batches per epoch instead of 10.

    The second time the run was killed right after it had resumed with 2.
    """
    parts, shorter = {"train": tiny.data(80)}, {"limit_train_batches": 2, "max_steps": 6}
    for name, limit, step in (("shorter", 2, 6), ("longer", 7, 7)):
        folder = tmp_path / name
        unfinished(folder, parts, steps=5, **PLAIN)
        if name == "longer":
            prepare(folder, parts, allow=["limit_train_batches"], **shorter, **PLAIN).close()
        changed = {"limit_train_batches": limit, "max_steps": step}
        with prepare(folder, parts, allow=["limit_train_batches"], **changed, **PLAIN) as session:
            assert session.state.progress.step == 5
            list(session.steps())
        assert session.state.progress.step == step
    assert "damaged" not in capsys.readouterr().err


class Growing(Dataset):
    """Has 16 samples in the first epoch, and 64 in each later one."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 64 if self.epoch else 16

    def __getitem__(self, index):
        x = torch.sin(torch.arange(4.0) + index + self.epoch)
        return x, index % 3


@pytest.mark.filterwarnings("ignore:The training data had 16 samples")
@pytest.mark.parametrize("steps", [2, 3, 8])
def test_run_resumes_in_an_epoch_that_is_longer_than_the_first(tmp_path, steps):
    options = {"epochs": None, "max_steps": 10, "logging": {"progress": "quiet"}}
    whole = tiny.model()
    with prepare(tmp_path / "whole", {"train": Growing(), "model": whole}, **options) as session:
        list(session.steps())
    unfinished(
        tmp_path / "half", {"train": Growing(), "model": tiny.model()}, steps=steps, **options
    )
    half = tiny.model()
    with prepare(tmp_path / "half", {"train": Growing(), "model": half}, **options) as session:
        assert session.state.progress.step == steps
        list(session.steps())
    assert torch.equal(tiny.weights(half), tiny.weights(whole))


def test_option_that_follows_from_a_changed_one_is_not_listed(tmp_path):
    unfinished(tmp_path)
    with pytest.raises(RunError) as caught:
        prepare(tmp_path, optim={"name": "sgd"})
    assert "optim.name" in str(caught.value)
    assert "optim.momentum" not in str(caught.value)


def test_plan_that_differs_on_this_machine_is_reported(tmp_path):
    unfinished(tmp_path)
    path = tmp_path / "config.json"
    known = json.loads(path.read_text())
    known["decided"]["precision"] = "bf16"  # auto, if there was a GPU
    path.write_text(json.dumps(known))
    with pytest.raises(RunError, match="precision  bf16  ->  fp32  blocked"):
        prepare(tmp_path)


@pytest.mark.parametrize(
    ("allow", "sentence"),
    [
        (("optim.rl",), "optim.lr"),
        (("dta",), "Did you mean 'data'"),
        ("optim.lr", r"allow=\('optim.lr',\)"),
    ],
)
def test_allow_with_an_unknown_name_is_rejected(tmp_path, allow, sentence):
    with pytest.raises(ConfigError, match=sentence):
        prepare(tmp_path / "run", allow=allow)
    assert not (tmp_path / "run").exists()


class Noisy(Dataset):
    """Augments at random and draws from a list of its samples."""

    def __init__(self, shift=0.0):
        self.x, self.y = tiny.data()
        self.x = self.x + shift
        self.loads = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.loads += 1
        return self.x[index] + torch.rand(4), self.y[index]


def test_randomly_augmented_data_are_identified_as_the_same_on_resume(tmp_path):
    unfinished(tmp_path, {"train": Noisy()})
    assert resume_run(tmp_path, {"train": Noisy()}) == []


def test_changed_values_under_random_augmentation_are_detected(tmp_path):
    unfinished(tmp_path, {"train": Noisy()})
    with pytest.raises(RunError, match="some samples"):
        prepare(tmp_path, {"train": Noisy(shift=1.0)})


def test_finished_run_with_a_safe_change_remains_finished(tmp_path):
    tiny.fit(tmp_path)
    with prepare(tmp_path, checkpoint={"keep_last": 3}) as session:
        assert session.finished


def test_finished_run_can_be_extended(tmp_path):
    tiny.fit(tmp_path, epochs=1)
    with prepare(tmp_path, epochs=2) as session:
        assert [result.step for result in session.steps()] == [4, 5, 6]


ELSEWHERE = {
    "fsdp": {"parallel.shard": "full"},
    "zero": {"parallel.strategy": "deepspeed", "parallel.zero_stage": 2},
    "batch norm": {"parallel.sync_batchnorm": True},
    "gpu": {"device": "cuda:7", "data.pin_memory": True},
    "profile": {"profile": "3:6"},
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_run_of_different_ranks_or_devices_can_be_extended(tmp_path, where):
    tiny.fit(tmp_path, epochs=1)
    path = tmp_path / "config.json"
    known = json.loads(path.read_text())
    known["config"].update(ELSEWHERE[where])  # which this process could not plan
    path.write_text(json.dumps(known))
    with prepare(tmp_path, epochs=2) as session:
        assert [result.step for result in session.steps()] == [4, 5, 6]


def test_longer_cosine_of_a_run_of_different_ranks_is_shown_in_numbers(tmp_path):
    cosine = {"schedule": {"name": "cosine"}, "optim": {"lr": 0.1}}
    tiny.fit(tmp_path, max_steps=4, **cosine)
    path = tmp_path / "config.json"
    known = json.loads(path.read_text())
    known["config"].update(ELSEWHERE["fsdp"])
    path.write_text(json.dumps(known))
    with pytest.raises(RunError, match=r"at step 4 it was 0\.0146, and it would continue at 0\.05"):
        prepare(tmp_path, max_steps=8, **cosine)


def test_run_that_stopped_early_resumes_with_more_patience(tmp_path):
    never_better = {"val": tiny.data(4), "loss": lambda logits, y: logits.sum() * 0 + 1}
    first = tiny.fit(tmp_path, never_better, epochs=9, early_stop={"patience": 1})
    assert first.status["step"] == 6
    again = tiny.fit(tmp_path, never_better, epochs=9, early_stop={"patience": 3})
    assert again.status["step"] == 12


def test_finished_run_that_is_shortened_to_its_progress_remains_finished(tmp_path):
    with prepare(tmp_path) as session:
        next(session.steps())
        session.save()
        session.end("finished")
    with prepare(tmp_path, max_steps=1) as session:
        assert session.finished


def test_run_cannot_be_shortened_below_its_progress(tmp_path):
    tiny.fit(tmp_path, max_steps=4)
    with pytest.raises(RunError, match="it is at step 4 already"):
        prepare(tmp_path, max_steps=3, allow=("max_steps",))


def test_learning_rate_of_a_longer_warmup_is_shown_where_it_differs(tmp_path):
    warmup = {"schedule": {"name": "constant", "warmup": "50%"}, "optim": {"lr": 0.1}}
    tiny.fit(tmp_path, max_steps=4, **warmup)
    with pytest.raises(RunError) as caught:
        prepare(tmp_path, max_steps=8, **warmup)
    assert (
        "the learning rate by constant depends on the length by its warm-up, which was 2 steps and "
        "would be 4: in step 1 it was 0.05, and would have been 0.025"
    ) in str(caught.value)


def test_learning_rate_of_a_longer_cosine_is_shown_in_numbers(tmp_path):
    cosine = {"schedule": {"name": "cosine"}, "optim": {"lr": 0.1}}
    tiny.fit(tmp_path, max_steps=4, **cosine)
    with pytest.raises(RunError) as caught:
        prepare(tmp_path, max_steps=8, **cosine)
    # the last of 4 steps had (1 + cos(3/4 pi)) / 2, the fifth of 8 has (1 + cos(4/8 pi)) / 2
    assert "at step 4 it was 0.0146, and it would continue at 0.05" in str(caught.value)
    with prepare(tmp_path, max_steps=8, allow=("max_steps",), **cosine) as session:
        assert next(session.steps()).lr == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("before", "now"),
    [({}, SCORE), ({"metric": "score", "mode": "min"}, SCORE)],
    ids=["different metric", "opposite mode"],
)
def test_best_metric_restarts_if_the_monitor_changes(tmp_path, before, now):
    more = {"epochs": 4, "checkpoint": {"every": "9 epochs"}}
    falls = {"schedule": {"name": "reduce_on_plateau", "warmup": "0%"}}
    with prepare(tmp_path, scored([0.1, 0.4]), validation=before, **more, **falls) as session:
        tiny.evaluate_twice(session)
    names = ("validation.metric", "validation.mode")
    for _ in range(2):  # a run that is killed immediately resumes the same way
        said = {"validation": now, **more, **falls}
        with prepare(tmp_path, scored([0.7]), allow=names, **said) as session:
            standing = session.state.best
            assert (standing.metric, standing.best_step) == ("val/score", 6)
            assert (standing.best, standing.since_best) == (pytest.approx(0.4), 0)
            assert session.state.plateau.best is None
        names = ()
    run = tiny.fit(tmp_path, scored([0.7, 0.6]), **said)
    assert (run.best.step, run.best.metrics["val/score"]) == (9, pytest.approx(0.7))


def other_set():
    x, y = tiny.data(12, seed=5)
    return x + 1, y


@pytest.mark.parametrize(
    ("parts", "said"),
    [({"val": other_set()}, {}), ({}, {"limit_val_batches": 1})],
    ids=["other samples", "fewer samples"],
)
def test_best_metric_restarts_if_it_is_measured_on_other_samples(tmp_path, capsys, parts, said):
    more = {"epochs": 4, "validation": {"batch_size": 4}, **PLAIN}
    allow = ("limit_val_batches",)
    with prepare(tmp_path, {"val": tiny.data(12)}, **more) as session:
        tiny.evaluate_twice(session)
        assert session.state.best.best is not None
    own = {"val": tiny.data(12)} | parts
    for _ in range(2):  # a run that is killed immediately resumes the same way
        with prepare(tmp_path, own, allow=allow, **more, **said) as session:
            best = session.state.best
            assert (best.best, best.best_step, best.latest, best.since_best) == (None, None, {}, 0)
        allow = ()
    assert "measured on other samples" in (text := capsys.readouterr().err) or "of other" in text
    run = tiny.fit(tmp_path, own, **more, **said)
    assert run.best.step > 6


def test_best_metric_stays_if_a_set_that_is_not_monitored_changes(tmp_path, capsys):
    more = {"epochs": 4, "validation": {"metric": "near/loss"}, **PLAIN}
    with prepare(
        tmp_path, {"val": {"near": tiny.data(12), "far": tiny.data(9)}}, **more
    ) as session:
        tiny.evaluate_twice(session)
        best = session.state.best.best
    with prepare(tmp_path, {"val": {"near": tiny.data(12), "far": other_set()}}, **more) as session:
        assert session.state.best.best == best
    assert "far: " in capsys.readouterr().err


def test_run_with_the_seeds_of_an_older_version_says_that_numbers_differ(tmp_path, capsys):
    unfinished(tmp_path, **PLAIN)
    path = tmp_path / "config.json"
    known = json.loads(path.read_text())
    del known["seeds"], known["validation"]  # as older versions wrote it
    path.write_text(json.dumps(known))
    assert recorded(resume_run(tmp_path, **PLAIN)) == [("seeds", "not bitwise")]
    assert "numpy and random draw other numbers than so far" in capsys.readouterr().err


def built(*modules):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *modules, nn.Linear(8, 3))


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize(
    ("before", "now", "row"),
    [
        (nn.Tanh, nn.ReLU, r"model: 1  Tanh  ->  ReLU  blocked: another function"),
        (
            lambda: nn.Dropout(0.3),
            lambda: nn.Dropout(0.0),
            r"model: 1\.p  0\.3  ->  0\.0  blocked",
        ),
    ],
)
def test_changed_module_is_rejected_unless_allowed(tmp_path, before, now, row):
    unfinished(tmp_path, {"model": built(before())})
    with pytest.raises(RunError, match=row):
        prepare(tmp_path, {"model": built(now())})
    events = resume_run(tmp_path, {"model": built(now())}, allow=("modules",))
    assert [effect for _, effect in recorded(events)] == ["allowed"]
    assert resume_run(tmp_path, {"model": built(now())})[1:] == []


def test_changed_setting_of_a_custom_module_is_reported(tmp_path):
    unfinished(tmp_path, {"model": built(Scaled(1.0))})
    events = resume_run(tmp_path, {"model": built(Scaled(2.0))})
    assert recorded(events) == [("model: 1.scale", "not bitwise")]


def test_activation_given_as_a_function_is_compared(tmp_path):
    def layer(activation):
        inner = nn.TransformerEncoderLayer(8, 2, 8, activation=activation, batch_first=True)
        return built(nn.Unflatten(1, (1, 8)), inner, nn.Flatten())

    unfinished(tmp_path, {"model": layer(nn.functional.relu)})
    with pytest.raises(RunError, match=r"model: 2\.activation .*relu  ->  .*gelu  blocked"):
        prepare(tmp_path, {"model": layer(nn.functional.gelu)})
