"""Law 9: a set option is never replaced; an unknown number is shown as unknown.

`support/option_values.py` has a value other than the default for every option of the Config, and
the value that the Plan must have. An option that is missing there fails the test.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import surestep
from surestep.config.config import Config, iter_options
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import read_system
from surestep.trainer import planning
from surestep.trainer.planning import plan_task
from tests.laws.support.option_values import ONLY_VALUE, OPTION_VALUES, SAME_VALUE, SAMPLES, task_of
from tests.laws.support.tasks import Augmented, mlp, rows, session_of, with_batchnorm

Folder = Callable[[], Path]


def plan_of(options: dict[str, Any], **parts: Any) -> Plan:
    length = {} if {"epochs", "max_steps"} & options.keys() else {"epochs": 1}
    size = {} if "batch_size" in options or parts else {"batch_size": 16}
    system = parts.pop("system", read_system)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "read_system", system)
        return plan_task(task_of(**parts), Config.from_options({**length, **size, **options})).plan


def held(plan: Plan, at: str) -> Any:
    """Return the value of the Plan at a path such as "schedule.curve_options.gamma"."""
    value: Any = plan
    for name in at.split("."):
        value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def check_option_value(option: str) -> None:
    """Check that the Plan has the value that was set for an option."""
    case = OPTION_VALUES[option]
    plan = plan_of({**case.along, option: case.value}, **case.parts)
    at = case.at or option.replace(".", "_")
    at += option.split(".")[-1] if at.endswith(".") else ""
    planned = case.value if case.planned is SAME_VALUE else case.planned
    assert held(plan, at) == planned
    without = held(plan_of({**case.along, **case.otherwise}, **case.parts), at)
    if option not in ONLY_VALUE:
        assert without != planned, "this is the default: the test would show nothing"
    if at == "total_steps":
        assert plan.reason("total_steps").startswith(("set ", "2.5 epochs"))
    else:
        assert "set " in plan.reason(option)


@pytest.mark.parametrize("option", [name for name, _ in iter_options()])
def test_set_value_is_the_planned_value(option):
    check_option_value(option)


def test_every_option_has_a_test_value():
    assert list(OPTION_VALUES) == [name for name, _ in iter_options()]


def test_every_option_has_a_reason():
    plan = plan_of({})
    assert all(decision.reason for decision in plan.decisions)


def test_optimizer_is_made_as_planned(folder):
    optim = {"lr": 0.5, "weight_decay": 0.25, "betas": (0.5, 0.75), "eps": 1e-3}
    with session_of(task_of(), folder(), epochs=1, optim=optim) as session:
        decayed, kept = session.optimizer.param_groups
    assert {name: decayed[name] for name in optim} == optim
    assert {name: kept[name] for name in optim} == {**optim, "weight_decay": 0.0}


def test_settings_of_the_process_hold_while_the_session_is_open(folder):
    with session_of(task_of(), folder(), epochs=1, deterministic=True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_data_is_read_as_planned(folder):
    data = {"shuffle": False, "drop_last": True}
    seen = []
    model = mlp()
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    task = surestep.Task(model, nn.CrossEntropyLoss(), rows(SAMPLES))
    with session_of(task, folder(), epochs=1, batch_size=8, micro_batch_size=5, data=data) as s:
        seen.clear()
        list(s.steps())
    assert torch.equal(torch.cat(seen), rows(SAMPLES)[0][:48])
    assert [len(batch) for batch in seen] == [5, 3] * 6


def test_elements_of_the_gradient_are_clipped_as_planned(folder):
    with session_of(task_of(), folder(), epochs=1, clip_value=1e-3) as session:
        next(session.steps())
        grads = [parameter.grad.abs().max() for parameter in session.model.parameters()]
    assert max(grads) == pytest.approx(1e-3)


def test_validation_loader_with_a_custom_sampler_is_rejected():
    drawn = DataLoader(TensorDataset(*rows(20)), 5, sampler=SubsetRandomSampler(range(5)))
    with pytest.raises(surestep.SurestepError, match="sampler"):
        plan_of({}, val=drawn)


def unknown(folder: Folder) -> tuple[Any, list[dict[str, Any]]]:
    """Train over a batch without items; return its result and the events."""
    x, y = rows(24)
    y[8:16] = -100
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(), (x, y), val=(x, torch.full_like(y, -100)))
    with session_of(
        task, folder(), epochs=1, batch_size=8, data={"shuffle": False}, logging={"every": "1 step"}
    ) as session:
        results = list(session.steps())
        metrics = session.evaluate()
    assert math.isnan(metrics["val/loss"])
    return results[1], list(session.run.events())


def check_unknown(folder: Folder) -> None:
    """Check that no unknown number is reported as zero."""
    result, events = unknown(folder)
    assert math.isnan(result.loss)
    assert math.isnan(result.grad_norm)
    assert not result.took_step
    steps = [event for event in events if event["event"] == "steps"]
    assert [(event["loss"], event["grad_norm"]) for event in steps][1] == ([None], [None])
    assert all(steps[i]["loss"][0] > 0 for i in (0, 2))
    (evaluation,) = [event for event in events if event["event"] == "evaluation"]
    assert evaluation["metrics"]["val/loss"] == "nan"


def test_unknown_number_is_never_zero(folder):
    check_unknown(folder)


def test_progress_shows_unknown_numbers_as_not_known(folder, capsys):
    x, y = rows(16)
    y[8:] = -100
    task = surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), (x, y))
    with session_of(
        task,
        folder(),
        epochs=1,
        batch_size=8,
        data={"shuffle": False},
        logging={"every": "1 step", "progress": "plain"},
    ) as session:
        list(session.steps())
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "loss not known" in last
    assert "grad_norm not known" in last


def test_workers_of_the_plan_are_those_of_the_loader(folder):
    data = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": False}
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(), Augmented())
    with session_of(task, folder(), epochs=1, data=data) as session:
        loader = session.evaluations._evaluator.loaders["train"].source._loader
    assert {name: getattr(loader, name) for name in data} == data


def test_dataloader_of_the_validation_data_loads_with_its_own_workers(folder):
    own = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True}
    val = DataLoader(Augmented(), 8, **own)
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(), Augmented(), val=val)
    with session_of(task, folder(), epochs=1) as session:
        loader = session.evaluations._evaluator.loaders["val"].source._loader
    assert {name: getattr(loader, name) for name in own} == own
