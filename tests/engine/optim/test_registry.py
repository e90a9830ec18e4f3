import inspect
from pathlib import Path

import pytest
import torch

import surestep
from surestep.config.optim import BUILT_IN, OF_ALL, Optim
from surestep.engine.optim.registry import BUILT_IN as OPTIMIZERS
from tests.needs import needs

# Arguments of a class that are not its own options, and how they are set here.
NOT_OWN = {
    "params": "the groups of parameters",
    "lr": "optim.lr, which every optimizer has",
    "weight_decay": "optim.weight_decay",
    "foreach": "optim.implementation",
    "fused": "optim.implementation",
    "maximize": "a loss is made small; negate what should be large",
    "capturable": "for capturing a step in a CUDA graph, which surestep does not",
    "differentiable": "for a gradient through the optimizer, which a step does not need",
}
NOT_OWN_8BIT = {
    "amsgrad": "bitsandbytes takes the word and does nothing",
    "optim_bits": "8 is the optimizer's name",
    "args": "inner settings of bitsandbytes",
    "is_paged": "pages cannot be saved and loaded as they were",
}
TORCHS = {
    name
    for name, each in vars(torch.optim).items()
    if inspect.isclass(each) and issubclass(each, torch.optim.Optimizer)
} - {"Optimizer"}


def test_every_optimizer_of_torch_is_registered():
    torchs = {each.kind.__name__ for each in OPTIMIZERS.values() if each.path.startswith("torch")}
    assert torchs == TORCHS
    assert list(BUILT_IN) == sorted(OPTIMIZERS)


def test_config_has_exactly_the_options_of_the_registered_optimizers():
    own = {option for each in OPTIMIZERS.values() for option in each.options}
    assert own == set(Optim.model_fields) - set(OF_ALL)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow("needs bitsandbytes")] * (name == "adamw8bit"))
        for name in OPTIMIZERS
    ],
)
def test_options_match_the_signature(name):
    known = OPTIMIZERS[name]
    left_out = set(NOT_OWN)
    if name == "adamw8bit":
        needs("bitsandbytes")
        left_out |= set(NOT_OWN_8BIT)
    found = {k: v.default for k, v in inspect.signature(known.kind).parameters.items()}
    found = {option: value for option, value in found.items() if option not in left_out}
    assert known.options == {**found, **known.extra}
    assert set(known.extra) <= {"adamw_lr", "betas"} or name == "adamw8bit"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_purpose_is_a_sentence_with_a_source(name):
    known = OPTIMIZERS[name]
    assert known.purpose.endswith(".")
    assert known.source.startswith("https://")


def test_optimizer_page_matches_the_registry():
    page = Path(surestep.__file__).parents[2] / "docs" / "optimizers.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| [`")]
    assert rows == [
        f"| [`{name}`]({each.source}) | {each.purpose} | "
        + ", ".join(f"`{option}`" for option in each.options)
        + " |"
        for name, each in OPTIMIZERS.items()
    ]


FUSED = [name for name, each in OPTIMIZERS.items() if "fused" in each.signature]


def test_only_these_optimizers_are_fused():
    assert FUSED == ["adagrad", "adam", "adamw", "sgd"]
