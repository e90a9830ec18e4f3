"""`find_lr()` and optim.lr="find": they measure the user's own steps, and change nothing."""

import copy
import itertools
import json
import math
import re
import shutil
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surestep
from surestep import errors
from surestep.engine.plan.fitting import FoundSize
from surestep.trainer import range_test, task_snapshot
from surestep.trainer.dry_run import dry_run
from surestep.trainer.planning import plan_task
from surestep.trainer.range_test import RateRange
from tests.laws.test_law_4_range_tests import Net, config_of, make_task, read_all

home = import_module("surestep.trainer.find_lr")
SHORT = {"seeds": 1, "steps": 20}


@pytest.fixture(autouse=True, scope="module")
def shorter():
    """Range tests of runs take fewer steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "RateRange", lambda *args: RateRange(*args or (1e-7, 10.0, 100)))
        yield


def make_line(**more):
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    return surestep.Task(nn.Linear(4, 1), loss="mse", train=(x, x.sum(1, keepdim=True)), **more)


class Limited(nn.Linear):
    """Runs out of memory on more rows than fit: 8, and 4 from the 40th forward in training on."""

    forwards = ran_out = 0

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            Limited.forwards += 1
        if len(x) > (8 if Limited.forwards < 40 else 4):
            Limited.ran_out += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x)


def test_memory_that_runs_out_is_explained():
    calls = itertools.count()

    def run_out(outputs, targets):
        if next(calls) > 15:  # after the checks of the first batch
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return (outputs - targets).square().mean()

    x = torch.randn(48, 4)
    task = surestep.Task(lambda: nn.Linear(4, 1), loss=run_out, train=(x, x.sum(1, keepdim=True)))
    with pytest.raises(
        surestep.errors.OutOfMemoryError, match="ran out while the learning rate was measured"
    ):
        surestep.find_lr(task, config_of(optim="sgd"), **SHORT)


@pytest.mark.parametrize(("steps", "text"), [(1, "has 1 step, too few"), (4, "has 4 steps, too")])
def test_run_that_is_too_short_shows_no_rate(steps, text):
    config = config_of(optim="sgd").replace_options({"epochs": None, "max_steps": steps})
    with pytest.raises(errors.ConfigError, match=text):
        surestep.find_lr(make_line(), config, **SHORT)


def test_range_test_takes_steps_that_run_out_of_memory_again():
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
    data = (x, x.sum(1, keepdim=True))
    config = config_of(optim="sgd", batch_size=16)
    whole, fitted = (
        surestep.find_lr(
            surestep.Task(lambda layer=layer: layer(4, 1), loss="mse", train=data),
            config.replace_options({"micro_batch_size": size}),
            **SHORT,
        )
        for layer, size in ((nn.Linear, 16), (Limited, "fit"))
    )
    assert fitted.curves[0].losses == pytest.approx(whole.curves[0].losses, rel=1e-4)
    assert len(whole.curves[0].losses) > 10
    assert Limited.ran_out >= 2  # in the first batch, and in a step


@pytest.mark.parametrize("has_val", [True, False])
def test_short_trainings_are_those_of_plain_torch_with_the_schedule_compressed(has_val):
    val = (torch.ones(30, 4), torch.zeros(30, 1))
    task = make_line(**({"val": val} if has_val else {}))
    config = surestep.Config(
        max_steps=200,
        batch_size=8,
        logging={"progress": "quiet"},
        max_grad_norm=None,
        optim="sgd",
        schedule={"name": "linear", "warmup": "10%"},
    ).replace_options({"data.shuffle": False})
    found = surestep.find_lr(task, config, seeds=1, steps=100)
    x, y = task.train
    assert 3 <= len(found.trainings) <= 5
    for training in found.trainings:
        model, losses = copy.deepcopy(task.model), []
        for number in range(100):
            at, taken = number % 6 * 8, 2 * number
            loss = nn.functional.mse_loss(model(x[at : at + 8]), y[at : at + 8])
            losses.append(loss.item())
            model.zero_grad()
            loss.backward()
            factor = (1 + 19 * taken / 20) / 20 if taken < 20 else 1 - (taken - 20) / 180
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= training.lr * factor * parameter.grad
        with torch.no_grad():
            measured = nn.functional.mse_loss(model(val[0]), val[1]).item()
        expected = measured if has_val else sum(losses[-20:]) / 20
        if expected > 1e3:
            assert training.losses == (math.inf,)
        else:
            assert training.losses[0] == pytest.approx(expected, rel=1e-4)
    assert sum(map(math.isfinite, (training.losses[0] for training in found.trainings))) >= 2


def test_short_trainings_use_the_schedule_of_the_task_and_range_tests_do_not():
    def schedule(steps_taken, total):
        return 0.0 if steps_taken >= total // 2 else 1.0

    found = [
        surestep.find_lr(make_line(**more), config_of(optim="sgd", **options), **SHORT)
        for more, options in (
            ({}, {"schedule": "constant"}),
            ({"schedule": schedule}, {}),
        )
    ]
    assert found[0].curves == found[1].curves
    planned = plan_task(make_line(schedule=schedule), config_of(optim="sgd"))
    assert home.list_factors(planned, planned.plan, 4) == [1, 1, 0, 0]
    assert home.list_factors(planned, planned.plan, 100) == [1, 1, 1, 0, 0, 0]


def test_first_of_several_validation_sets_is_compared():
    x, y = make_line().train
    options = {"name": "sgd", "lr": 0.01}
    one, several = (
        surestep.find_lr(make_line(val=val), config_of(optim=options), seeds=1, steps=100)
        for val in ((x, y), {"first": (x, y), "second": (x, 1e3 + y)})
    )
    assert one.trainings == several.trainings != ()


def test_validation_is_limited_to_as_many_batches_as_the_training_has_steps():
    seen = set()

    class Counted(torch.utils.data.Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            seen.add(index)
            return torch.ones(4), torch.ones(1)

    config = config_of(optim="sgd").replace_options({"validation.batch_size": 8})
    found = surestep.find_lr(make_line(val=Counted()), config, seeds=1, steps=100)
    assert found.trainings
    assert len(seen) < 100  # the training has 6 steps


def test_all_short_trainings_that_diverge_show_no_rate(monkeypatch):
    lost = range_test.TrainingEnd(float("inf"), fell=False)
    monkeypatch.setattr(home, "measure_end", lambda *_: lost)
    found = surestep.find_lr(make_line(), config_of(optim="sgd"), seeds=2, steps=100)
    assert found.lr is None
    assert found.why == "all 5 short trainings diverged; test lower rates"
    assert found.as_json()["trainings"][0] == {"lr": found.trainings[0].lr, "losses": [None, None]}


@pytest.mark.parametrize("fell", [True, False])
def test_loss_that_falls_in_no_range_test_must_fall_in_a_short_training(monkeypatch, fell):
    rates = RateRange(1e-7, 10.0, 100).list_rates()
    curve = home.RangeCurve(
        rates[:80], [*(2.0 + 0.1 * (-1) ** step for step in range(79)), float("nan")]
    )
    ends = iter(range_test.TrainingEnd(loss, fell) for loss in (2.0, 3.0, 3.0))
    monkeypatch.setattr(home, "measure_curve", lambda *_: curve)
    monkeypatch.setattr(home, "measure_end", lambda *_: next(ends))
    found = surestep.find_lr(make_line(), config_of(optim="sgd"), seeds=1, steps=100)
    assert len(found.trainings) == 3
    if fell:
        assert found.lr == pytest.approx(rates[78] / 10, rel=0.05)
    else:
        assert (found.lr, found.why[:23]) == (None, "the curves show no rate")


def test_steps_of_a_range_test_are_reported_by_nothing(monkeypatch):
    logs = []
    closing = range_test._closing_steps

    @contextmanager
    def keep_log(loop):
        logs.append(loop.log)
        with closing(loop) as steps:
            yield steps

    monkeypatch.setattr(range_test, "_closing_steps", keep_log)
    surestep.find_lr(make_line(), config_of(optim="sgd"), **SHORT)
    assert [log.pending for log in logs] == [[]] * len(logs)
    assert logs


def test_range_test_keeps_no_average_of_the_weights(monkeypatch):
    kinds = []
    make = range_test._make_plan

    def make_plan(*words):
        kinds.append(make(*words).average.kind)
        return make(*words)

    monkeypatch.setattr(range_test, "_make_plan", make_plan)
    surestep.find_lr(make_line(), config_of(optim="sgd", average="ema"), **SHORT)
    assert set(kinds) == {"none"}


def train(task, folder, **options):
    """Return the weights after training, with the run."""
    trainer = surestep.Trainer(task, config_of(**options), run=folder)
    run = trainer.fit()
    weights = trainer.session.model.state_dict()
    return {name: value.tolist() for name, value in weights.items()}, run


@pytest.mark.parametrize(
    "is_built", [True, pytest.param(False, marks=pytest.mark.slow("trains as the other does"))]
)
def test_training_after_find_lr_is_bitwise_that_without(tmp_path, is_built):
    model = None if is_built else Net
    expected, _ = train(make_task(model), tmp_path / "a")
    task = make_task(model)
    found = surestep.find_lr(task, config_of(), **SHORT)
    assert found.starts_alike is is_built
    assert train(task, tmp_path / "b")[0] == expected


def test_curve_is_that_of_plain_torch():
    task = make_line()
    config = config_of(max_grad_norm=None, optim="sgd", schedule={"name": "cosine"})
    config = config.replace_options({"data.shuffle": False})
    found = surestep.find_lr(task, config, seeds=1, steps=20, lowest=1e-3, highest=0.1)
    x, y = task.train
    model = task.model
    for number, rate in enumerate(found.curves[0].rates):
        at = number % 6 * 8
        loss = nn.functional.mse_loss(model(x[at : at + 8]), y[at : at + 8])
        assert found.curves[0].losses[number] == pytest.approx(loss.item(), rel=1e-6)
        assert rate == pytest.approx(1e-3 * 100 ** (number / 19))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad


def test_range_tests_start_in_the_size_that_rank_0_finds(monkeypatch):
    found = {"fitting": FoundSize(2, "rank 0 found it")}
    monkeypatch.setattr(home, "find_start_on_ranks", lambda *_: found)
    curves = []
    for size in (2, "fit"):
        config = config_of(micro_batch_size=size)
        curves.append(surestep.find_lr(make_line(), config, **SHORT).curves)
    assert curves[0] == curves[1]


def test_seeds_differ_in_order_and_weights_and_are_those_of_runs(tmp_path):
    task = surestep.Task(lambda: nn.Linear(4, 1), loss="mse", train=make_line().train)
    found = surestep.find_lr(task, config_of(seed=7), seeds=2, steps=20)
    assert found.seeds == (7, 8)
    first = []
    for seed in found.seeds:
        with surestep.prepare(task, config_of(seed=seed), run=tmp_path / str(seed)) as session:
            first.append(float(next(session.steps()).loss))
    assert [curve.losses[0] for curve in found.curves] == first
    assert first[0] != first[1]


def rates_of_steps(task, config, monkeypatch, **more):
    """Return the rate of each group in the second step, and that of the range test."""
    seen, step = [], range_test._take_step

    def take_step(loop, steps, rate):
        answer = step(loop, steps, rate)
        groups = [g for o in loop.state.optimizers.values() for g in o.param_groups]
        seen.append([group["lr"] for group in groups])
        return answer

    monkeypatch.setattr(range_test, "_take_step", take_step)
    found = surestep.find_lr(task, config, **SHORT, **more)
    return found, found.curves[0].rates[1], seen[1]


def test_multiples_follow_the_rate_and_rates_of_groups_stay(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    task = surestep.Task(model, loss="mse", train=make_line().train)
    groups = ["0.* lr=0.1x decay=0", "1.* lr=0.003 decay=0", "2.* decay=0"]
    config = config_of(optim={"name": "sgd", "groups": groups})
    _, rate, seen = rates_of_steps(task, config, monkeypatch)
    assert sorted(seen) == sorted([rate, rate * 0.1, 0.003])


@pytest.fixture
def deep():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    return surestep.Task(model, loss="mse", train=make_line().train)


@pytest.mark.parametrize(
    ("optimizer", "option", "moves"),
    [("muon", "optim.lr", (True, False)), ("adamw", "optim.adamw_lr", (False, True))],
)
def test_rates_of_muon_and_of_its_adamw_are_measured_alone(
    deep, monkeypatch, optimizer, option, moves
):
    config = config_of(optim={"name": "muon", "lr": 0.02, "adamw_lr": 0.004})
    found, rate, seen = rates_of_steps(deep, config, monkeypatch, optimizer=optimizer)
    assert found.option == option
    expected = {rate if moves[0] else 0.02, rate if moves[1] else 0.004}
    assert set(seen) == expected


def test_one_rate_of_muon_and_adamw_is_measured_together(deep, monkeypatch):
    config = config_of(optim={"name": "muon", "adjust_lr_fn": "match_rms_adamw"})
    _, rate, seen = rates_of_steps(deep, config, monkeypatch)
    assert set(seen) == {rate}


def step_of_two(manual_step):
    for name in ("a", "b"):
        for micro_batch in manual_step.micro_batches(name):
            (x,), y = micro_batch.args, micro_batch.targets
            loss = (manual_step.models[name](x) - y).square().mean()
            manual_step.backward(loss, micro_batch)
        manual_step.step(name)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)


def make_two(**optims):
    optims = {"a": surestep.Optim(name="sgd", lr=0.01), "b": surestep.Optim(lr=0.02)} | optims
    return surestep.Task(
        Two,
        train=make_line().train,
        step=step_of_two,
        optimizers=optims,
        inputs=lambda batch: (batch[0], batch[1]),
    )


def test_one_of_several_optimizers_is_measured_and_others_keep_theirs(monkeypatch):
    found, rate, seen = rates_of_steps(make_two(), config_of(), monkeypatch, optimizer="b")
    assert (found.optimizer, found.option) == ("b", "")
    assert seen == [0.01, 0.01, rate, rate] or set(seen) == {0.01, rate}


@pytest.mark.parametrize(
    ("make", "options", "more", "expected"),
    [
        (make_two, {}, {}, "of a and b.*Pass --optimizer a or --optimizer b"),
        (make_two, {}, {"optimizer": "c"}, "There is no optimizer 'c'"),
        (lambda: make_two(a=torch.optim.SGD), {}, {"optimizer": "a"}, "made by a function"),
        (
            partial(make_line, optimizer=partial(torch.optim.SGD, lr=0.1)),
            {},
            {},
            "brings its own optimizer",
        ),
        (make_line, {"optim": "lbfgs"}, {}, "lbfgs is a factor on steps.*optim.lr=1.0"),
        (make_line, {"optim": "adadelta"}, {}, "adadelta is a factor on steps"),
        (make_line, {"optim": "rprop"}, {}, "reads its own only in the first step"),
        (
            make_line,
            {"optim": {"groups": ["* lr=0.1"]}},
            {},
            "sets the learning rate of every parameter.*lr=10x",
        ),
        (make_line, {}, {"steps": 5}, "steps=5 is not a number of steps"),
        (make_line, {}, {"steps": "many"}, "steps='many' is not a number of steps"),
        (make_line, {}, {"steps": 50.0}, "steps=50.0 is not a number of steps"),
        (make_line, {}, {"seeds": 0}, "seeds=0 is not a number of range tests"),
        (make_line, {}, {"seeds": True}, "seeds=True is not a number of range tests"),
        (make_line, {}, {"lowest": "a"}, "lowest='a' and highest=10.0 are not a range"),
        (make_line, {}, {"highest": None}, "highest=None are not a range"),
        (make_line, {}, {"lowest": True}, "lowest=True and highest=10.0 are not a range"),
        (make_line, {}, {"optimizer": 3}, "There is no optimizer 3"),
        (make_line, {}, {"lowest": 1, "highest": 0.1}, "not a range of learning rates"),
    ],
)
def test_what_cannot_be_measured_is_a_clear_error(make, options, more, expected):
    with pytest.raises(errors.ConfigError, match=f"(?s){expected}"):
        surestep.find_lr(make(), config_of(**options), **more)


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (make_two, {}, r"of a, b.*--optimizer a.*optimizers=\{'a': surestep.Optim"),
        (make_line, {"optim.name": "rprop"}, "reads its own only in the first step"),
        (make_line, {"optim.name": "lbfgs"}, "is a factor on steps"),
        (
            partial(make_line, optimizer=partial(torch.optim.SGD, lr=0.1)),
            {},
            "the Task brings its own optimizer",
        ),
    ],
)
def test_find_is_rejected_where_there_is_no_one_rate(tmp_path, make, options, expected):
    config = config_of().replace_options({"optim.lr": "find"} | options)
    with pytest.raises(errors.ConfigError, match=f"(?s){expected}"):
        surestep.prepare(make(), config, run=tmp_path / "r")
    assert not list(tmp_path.glob("r/*"))


def test_find_is_the_rate_of_muon_beside_that_of_its_adamw(deep, tmp_path, monkeypatch):
    seen = []

    def measure(planned, rate, *_):
        seen.append((rate.option, planned.plan.optim_options["adamw_lr"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(home, "measure_curve", measure)
    config = config_of(optim={"name": "muon", "lr": "find", "adamw_lr": 0.004})
    with pytest.raises(KeyboardInterrupt):
        surestep.prepare(deep, config, run=tmp_path / "r")
    assert seen == [("optim.lr", 0.004)]


def test_dry_run_measures_nothing(monkeypatch):
    monkeypatch.setattr(home, "measure_curve", None)
    actions = dry_run(make_line(), config_of(optim={"name": "sgd", "lr": "find"}))
    assert "one step" in [action.what for action in actions]


def test_run_ends_before_its_first_step_if_the_curves_say_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(home, "SEEDS", 1)
    task = surestep.Task(
        nn.Linear(4, 1), loss=lambda x, y: 0 * (x - y).square().mean(), train=make_line().train
    )
    before = task.model.weight.tolist()
    config = config_of(optim={"name": "sgd", "lr": "find"})
    with pytest.raises(
        errors.ConfigError, match=r"found no learning rate, since the curves.*optim.lr=0.001"
    ):
        surestep.prepare(task, config, run=tmp_path / "r")
    assert task.model.weight.tolist() == before
    assert not list(tmp_path.glob("r/*"))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A run with optim.lr="find"."""
    folder = tmp_path_factory.mktemp("searched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "SEEDS", 1)
        return train(make_task(), folder / "r", optim={"name": "sgd", "lr": "find"})


def test_run_with_find_is_bitwise_that_with_the_number(searched, tmp_path):
    weights, run = searched
    lr = run.config["config"]["optim.lr"]
    assert run.config["lr_find"] == lr
    decisions = json.loads((run.path / "plan.json").read_text(encoding="utf-8"))
    (reason,) = [one["reason"] for one in decisions if one["option"] == "optim.lr"]
    assert reason.startswith("found by a range test and short trainings: optim.lr=find, set ")
    assert weights == train(make_task(), tmp_path / "r", optim={"name": "sgd", "lr": lr})[0]
    (event,) = [event for event in run.events() if event["event"] == "lr_find"]
    assert event["lr"] == lr
    assert (event["seeds"], len(event["curves"])) == ([0], 1)


def no_search(*_):
    raise AssertionError("a resume must not search again")


def test_resume_uses_the_number_and_does_not_search(searched, tmp_path, monkeypatch):
    run = searched[1]
    shutil.copytree(run.path, tmp_path / "r")
    monkeypatch.setattr(home, "_search", no_search)
    for lr in ("find", run.config["lr_find"], "find"):
        config = config_of(optim={"name": "sgd", "lr": lr})
        with surestep.prepare(make_task(), config, run=tmp_path / "r") as session:
            assert session.finished
            assert session.optimizer.param_groups[0]["lr"] == run.config["lr_find"]
        assert session.run.config["lr_find"] == run.config["lr_find"]


def test_empty_validation_data_is_rejected_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(home, "measure_curve", no_search)
    x = torch.ones(20, 4)
    task = surestep.Task(nn.Linear(4, 4), nn.MSELoss(), (x, x), val=(x[:0], x[:0]))
    with pytest.raises(errors.DataError, match="The val data is empty"):
        surestep.find_lr(task, config_of())


def test_different_rate_is_rejected_with_the_option_that_uses_the_found_one(searched, tmp_path):
    run = searched[1]
    shutil.copytree(run.path, tmp_path / "r")
    text = f"The run found optim.lr={run.config['lr_find']:g}: set optim.lr='find' to use it again"
    with pytest.raises(errors.RunError, match=re.escape(text)):
        surestep.prepare(
            make_task(), config_of(optim={"name": "sgd", "lr": 1e-7}), run=tmp_path / "r"
        )


def test_run_with_a_typed_rate_does_not_resume_with_find(tmp_path):
    train(make_line(), tmp_path / "r", optim={"name": "sgd", "lr": 0.01})
    with pytest.raises(errors.RunError, match=r"optim.lr=0.01, which was not measured"):
        train(make_line(), tmp_path / "r", optim={"name": "sgd", "lr": "find"})


def test_nothing_is_measured_if_there_must_be_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(home, "_search", no_search)
    config = config_of(optim={"name": "sgd", "lr": "find"})
    with pytest.raises(errors.CheckpointError, match="resume is 'must'"):
        surestep.prepare(make_line(), config, run=tmp_path / "r", resume="must")


def test_find_does_not_start_from_a_checkpoint(searched, tmp_path):
    config = config_of(optim={"name": "sgd", "lr": "find"})
    with pytest.raises(errors.ConfigError, match=r"--from .*Set a number"):
        surestep.prepare(make_task(), config, run=tmp_path / "r", from_=f"{searched[1].path}@last")


def interrupt_step(monkeypatch, number):
    """Raise KeyboardInterrupt after some steps of a range test."""
    step, calls = range_test._take_step, []

    def take_step(*words):
        calls.append(1)
        if len(calls) > number:
            raise KeyboardInterrupt
        return step(*words)

    monkeypatch.setattr(range_test, "_take_step", take_step)


@pytest.mark.parametrize("number", [0, 3])
def test_search_that_was_interrupted_leaves_nothing(tmp_path, monkeypatch, number):
    task, config = make_task(), config_of(optim={"name": "sgd", "lr": "find"})
    before = [parameter.tolist() for parameter in task.model.parameters()]
    interrupt_step(monkeypatch, number)
    with pytest.raises(KeyboardInterrupt):
        surestep.prepare(task, config, run=tmp_path / "r")
    assert not list(tmp_path.glob("r/*"))
    assert [parameter.tolist() for parameter in task.model.parameters()] == before


def test_all_is_restored_if_ctrl_c_comes_while_it_is_restored(monkeypatch):
    task = make_task()
    before = read_all(task)["tensors"], task.model.calls
    interrupt_step(monkeypatch, 3)
    restore, calls = task_snapshot._Kept.restore, []

    def interrupt(kept):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        restore(kept)

    monkeypatch.setattr(task_snapshot._Kept, "restore", interrupt)
    with pytest.raises(KeyboardInterrupt):
        surestep.find_lr(task, config_of(), **SHORT)
    assert (read_all(task)["tensors"], task.model.calls) == before


def test_tensor_that_was_moved_returns_to_its_memory():
    planned = plan_task(make_line(), config_of())
    weight = planned.model.weight
    before = weight.data_ptr(), weight.tolist()
    with task_snapshot.preserve_task(planned):
        weight.data = weight.data + 1
    assert (weight.data_ptr(), weight.tolist()) == before


@pytest.mark.parametrize(
    ("losses", "ends_at"),
    [
        ([2.0] * 30, None),
        ([2.0, 1.0] * 15, None),
        ([2.0] * 10 + [1.0] * 10 + [40.0] * 10, 20),
        ([2.0] * 3 + [float("nan")], 3),
        ([-1.0] * 10 + [-2.0] * 10 + [1e3] * 10, 20),
        ([100.0] + [2.0] * 29, None),
    ],
)
def test_test_ends_when_the_loss_diverges(losses, ends_at):
    divergence = range_test.Divergence()
    found = [number for number, loss in enumerate(losses) if divergence.has_come(loss)]
    assert found[:1] == ([] if ends_at is None else [ends_at])


@pytest.mark.parametrize("is_built", [True, False])
def test_model_that_a_strategy_splits_has_to_be_built_by_a_function(monkeypatch, is_built):
    monkeypatch.setattr(range_test, "strategy_class", lambda _: SimpleNamespace(copies_model=False))
    planned = plan_task(make_task(None if is_built else Net), config_of())
    if not is_built:
        range_test.check_can_restore(planned)
        return
    with pytest.raises(errors.ConfigError, match=r"splits it for good. Pass a function"):
        range_test.check_can_restore(planned)


def test_steps_that_are_all_skipped_end_the_test():
    x, y = make_line().train
    task = surestep.Task(nn.Linear(4, 1), loss="mse", train=(x * 1e18, y))
    config = config_of(optim="sgd", max_grad_norm=None, on_nonfinite="skip")
    (curve,) = surestep.find_lr(task, config, **SHORT).curves
    assert len(curve.losses) == 1
