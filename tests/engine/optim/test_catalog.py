import inspect
from pathlib import Path
from typing import get_args

import pytest
import torch

import surestep
from surestep.config.optim import Name, Optim
from surestep.engine.optim.registry import NOT_OWN, NOT_OWN_8BIT, OPTIMIZERS, optimizers_with
from tests.needs import needs

SHARED = {"name", "lr", "weight_decay", "implementation", "groups", "layerwise_lr_decay"}
TORCHS = {
    name
    for name, each in vars(torch.optim).items()
    if inspect.isclass(each) and issubclass(each, torch.optim.Optimizer)
} - {"Optimizer"}


def test_every_optimizer_of_torch_is_in_the_catalog():
    assert {each.kind.__name__ for each in OPTIMIZERS.values() if each.kind is not None} == TORCHS
    assert list(get_args(Name)) == sorted(OPTIMIZERS)


def test_every_own_option_is_an_option_and_every_option_is_somebodys():
    own = {option for each in OPTIMIZERS.values() for option in each.options}
    assert own == set(Optim.model_fields) - SHARED


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if known.kind else pytest.mark.slow("needs bitsandbytes"))
        for name, known in OPTIMIZERS.items()
    ],
)
def test_the_options_are_those_of_the_signature(name):
    known = OPTIMIZERS[name]
    left_out = set(NOT_OWN)
    if known.kind is None:
        kind = needs("bitsandbytes").optim.AdamW8bit
        left_out |= set(NOT_OWN_8BIT)
    else:
        kind = known.kind
    found = {k: v.default for k, v in inspect.signature(kind).parameters.items()}
    found = {option: value for option, value in found.items() if option not in left_out}
    shown = {**found, **known.extra_help}
    assert known.options == shown
    assert set(known.extra_help) <= {"adamw_lr", "betas"} or known.kind is None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_it_is_for_is_a_sentence_with_its_source(name):
    known = OPTIMIZERS[name]
    assert known.purpose.endswith(".")
    assert known.source.startswith("https://")


def test_the_page_of_optimizers_is_the_catalog():
    page = Path(surestep.__file__).parents[2] / "docs" / "optimizers.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| [`")]
    assert rows == [
        f"| [`{name}`]({each.source}) | {each.purpose} | "
        + ", ".join(f"`{option}`" for option in each.options)
        + " |"
        for name, each in OPTIMIZERS.items()
    ]


def test_who_has_an_option_is_listed():
    assert optimizers_with("momentum") == ["muon", "rmsprop", "sgd"]


FUSED = [name for name, each in OPTIMIZERS.items() if "fused" in each.signature]


def test_these_are_fused():
    assert FUSED == ["adagrad", "adam", "adamw", "sgd"]
