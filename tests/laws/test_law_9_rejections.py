"""Law 9: an option that cannot be used raises an error that names what to set instead."""

import ast
import re
import sys
from ast import literal_eval
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.config.config import Config, iter_options, option_info
from surestep.engine import resolve as functions
from surestep.engine.plan.context import PlanContext
from surestep.engine.plan.system import read_system
from surestep.engine.resolve.requirements import requirements_of
from surestep.trainer import planning
from surestep.trainer.planning import plan_task
from tests.laws.support.option_values import MANY, OPTION_VALUES
from tests.laws.support.rejected_options import CANNOT, UNMET, VAL
from tests.laws.support.tasks import mlp, rows
from tests.tiny import TWO_GPUS


def task_of(**parts: Any) -> surestep.Task:
    usual = {"model": mlp(), "loss": nn.CrossEntropyLoss(), "train": rows(50)}
    return surestep.Task(**{**usual, **parts})


def plan(options: dict[str, Any], parts: dict[str, Any]) -> None:
    """Plan a task; `parts` may replace the system information and parts of the Task."""
    own = {name: part for name, part in parts.items() if name != "system"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "read_system", parts.get("system", read_system))
        plan_task(task_of(**own), Config.from_options({"epochs": 1, **options}))


def check_rejection(options: dict[str, Any], parts: dict[str, Any], words: str) -> None:
    """Check that options are rejected with an error that names them and a remedy."""
    with pytest.raises(ConfigError) as caught:
        plan(options, parts)
    message = str(caught.value)
    assert words in message
    named = any(name in message or str(value) in message for name, value in options.items())
    assert named or not options  # only the Task may be at fault


@pytest.mark.parametrize(
    ("options", "parts", "words"),
    CANNOT,
    ids=[" ".join(options) or "no option" for options, _, _ in CANNOT],
)
def test_impossible_option_is_rejected_with_a_remedy(options, parts, words):
    check_rejection(options, parts, words)


@pytest.mark.parametrize("option", UNMET)
def test_option_without_what_it_requires_is_rejected(option):
    """Every requirement of a declaration is tried in every way that leaves it unmet."""
    assert UNMET[option]
    tried = {words.removeprefix("requires ") for _, _, words in UNMET[option]}
    assert tried == set(requirements_of(option))
    for options, parts, words in UNMET[option]:
        check_rejection(options, parts, f"{option}={options[option]!r} {words}")


@pytest.mark.parametrize("option", UNMET)
def test_value_that_the_message_proposes_is_accepted(option):
    case = OPTION_VALUES[option]
    for options, parts, _ in UNMET[option]:
        with pytest.raises(ConfigError) as caught:
            plan(options, parts)
        proposed = re.search(r" Set ([\w.]+)=(\S+), or remove ", str(caught.value))
        if proposed is None:  # what the Task or the launcher brings is not an option
            assert re.search(r"(\. Remove| or remove| and remove) " + option, str(caught.value))
            continue
        name, value = proposed[1], literal_eval(proposed[2])
        is_shared = option.startswith("parallel.")
        launched = (MANY["system"] if is_shared else read_system)().launched
        on_gpu = {"system": partial(replace, TWO_GPUS, launched=launched)}
        plan(
            {**case.along, name: value, option: options[option], "batch_size": 16},
            {**VAL, **case.parts, **(on_gpu if name == "device" else {})},
        )


SWITCHES = [
    name
    for name, declared in iter_options()
    if bool in get_args(declared.annotation) and option_info(name).requires
]


@pytest.mark.parametrize("option", SWITCHES)
def test_switch_that_is_off_requires_nothing(option):
    plan({option: False}, {})


def reject_calls() -> set[tuple[str, int]]:
    """Return file and line of every call of `reject` in the functions that decide options."""
    return {
        (file.name, node.lineno)
        for file in Path(functions.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "reject"
    }


def test_every_rejection_of_the_rules_is_tried(monkeypatch):
    """A new call of `reject` without a case here fails."""
    tried = set()
    reject = PlanContext.reject

    def record(context: PlanContext, message: str) -> None:
        caller = sys._getframe(1)
        tried.add((Path(caller.f_code.co_filename).name, caller.f_lineno))
        reject(context, message)

    monkeypatch.setattr(PlanContext, "reject", record)
    for options, parts, _ in CANNOT:
        with suppress(ConfigError):
            plan(options, parts)
    assert reject_calls() - tried == set()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.1}, "'optim.lr'"),
        ({"optim": {"learning_rate": 0.1}}, "optim.learning_rate"),
        ({"batch_sise": 3}, "'batch_size'"),
        ({"epochs": 1, "max_steps": 2}, "Set one of them"),
        ({"epochs": 0}, "epochs=0"),
        ({"precision": "fp8"}, "'bf16'"),
        ({"validation": {"every": "10 minutes"}}, "epochs, steps, items"),
        ({"checkpoint": {"every": "often"}}, "'2 epochs'"),
        ({"schedule": {"warmup": "120%"}}, "between 0% and 100%"),
        ({"optim": {"betas": (0.9, 1.0)}}, "optim.betas"),
    ],
)
def test_unknown_option_or_value_is_rejected_with_the_valid_ones(options, words):
    with pytest.raises(ConfigError) as caught:
        Config(**options)
    assert words in str(caught.value)
