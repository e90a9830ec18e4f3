"""Law 9: a wish that cannot be kept is an error that says what to type instead."""

import re
from ast import literal_eval
from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from typing import Any, get_args

import pytest
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.config.config import Config, iter_options, option_info
from surestep.engine.plan.plan import Constraint, PlanContext
from surestep.engine.plan.system import read_facts
from surestep.engine.rules import REFUSALS
from surestep.engine.rules.requirements import requirements_of
from surestep.trainer import planning
from surestep.trainer.planning import plan_task
from tests.laws.cannot import CANNOT, UNMET, VAL
from tests.laws.tasks import mlp, rows
from tests.laws.wishes import MANY, WISHES
from tests.tiny import TWO_GPUS


def task_of(**parts: Any) -> surestep.Task:
    usual = {"model": mlp(), "loss": nn.CrossEntropyLoss(), "train": rows(50)}
    return surestep.Task(**{**usual, **parts})


def plan(said: dict[str, Any], parts: dict[str, Any]) -> None:
    """Plan; `parts` may bring another machine's facts beside parts of the Task."""
    own = {name: part for name, part in parts.items() if name != "facts"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "read_facts", parts.get("facts", read_facts))
        plan_task(task_of(**own), Config.from_options({"epochs": 1, **said}))


def check_refusal(said: dict[str, Any], parts: dict[str, Any], words: str) -> None:
    """Ask for what cannot be; the error names what was said and holds what to type."""
    with pytest.raises(ConfigError) as caught:
        plan(said, parts)
    message = str(caught.value)
    assert words in message
    named = any(name in message or str(value) in message for name, value in said.items())
    assert named or not said  # the Task alone may be at fault


@pytest.mark.parametrize(
    ("said", "parts", "words"), CANNOT, ids=[" ".join(said) or "no option" for said, _, _ in CANNOT]
)
def test_wish_that_cannot_be_kept_is_refused_with_what_to_type(said, parts, words):
    check_refusal(said, parts, words)


@pytest.mark.parametrize("option", UNMET)
def test_option_without_what_it_requires_is_rejected(option):
    """Each requirement of each declaration, in each way that it can be unmet."""
    assert UNMET[option]
    tried = {words.removeprefix("requires ") for _, _, words in UNMET[option]}
    assert tried == set(requirements_of(option))
    for said, parts, words in UNMET[option]:
        check_refusal(said, parts, f"{option}={said[option]!r} {words}")


@pytest.mark.parametrize("option", UNMET)
def test_value_that_the_message_proposes_is_accepted(option):
    wish = WISHES[option]
    for said, parts, _ in UNMET[option]:
        with pytest.raises(ConfigError) as caught:
            plan(said, parts)
        proposed = re.search(r" Set ([\w.]+)=(\S+), or remove ", str(caught.value))
        if proposed is None:  # data, processes or a backend: none of them is an option
            assert re.search(r" (Pass Task\(val=|Start them with |Remove )", str(caught.value))
            continue
        name, value = proposed[1], literal_eval(proposed[2])
        on_gpu = {"facts": lambda: replace(TWO_GPUS, launched=MANY["facts"]().launched)}
        plan(
            {**wish.along, name: value, option: said[option], "batch_size": 16},
            {**VAL, **wish.parts, **(on_gpu if name == "device" else {})},
        )


SWITCHES = [
    name
    for name, declared in iter_options()
    if bool in get_args(declared.annotation) and option_info(name).requires
]


@pytest.mark.parametrize("option", SWITCHES)
def test_switch_that_is_off_requires_nothing(option):
    plan({option: False}, {})


def test_every_refusal_of_the_table_is_tried(monkeypatch):
    """A new refusal without a case here fails."""
    held: set[str] = set()

    def watched(name: str, refusal: Constraint) -> Constraint:
        def when(k: PlanContext) -> bool:
            holds = refusal.condition(k)
            if holds:
                held.add(name)
            return holds

        return refusal._replace(condition=when)

    names = set()
    for option, refusals in REFUSALS.items():
        named = [(f"{option}, no. {i + 1}", each) for i, each in enumerate(refusals)]
        names |= {name for name, _ in named}
        monkeypatch.setitem(REFUSALS, option, tuple(starmap(watched, named)))
    for said, parts, _ in CANNOT:
        with suppress(ConfigError):
            plan(said, parts)
    assert names - held == set()


@pytest.mark.parametrize(
    ("said", "words"),
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
def test_word_that_is_not_known_is_refused_with_those_that_are(said, words):
    with pytest.raises(ConfigError) as caught:
        Config(**said)
    assert words in str(caught.value)
