import json

import pytest

from tests.cli.conftest import HEAD
from tests.cli.test_plan import OWN

GROUPS = ("--optim.groups", "2 lr=0.5x", "0 freeze=1 epoch", "2.bias decay=0.3", "0.bias freeze")


def test_plan_shows_the_parameter_groups(surestep, recipe):
    found = surestep("plan", recipe(), *GROUPS).out
    for row in (
        " 2, decay 0.005 0.01 24 - ",
        " 2, 2.bias 0.005 0.3 3 - ",
        " 0, decay 0.01 0.01 32 3 steps are taken ",
        " 0, 0.bias - - 8 for good ",
        " 0 Linear 40 32 ",
    ):
        assert row in found
    assert "Layers" not in found


def test_plan_shows_the_layers(surestep, recipe):
    found = surestep("plan", recipe(), "--optim.layerwise-lr-decay", "0.25").out
    assert " 1 0 40 0.25 0.0025 " in found
    assert " 2 2 27 1 0.01 " in found


def test_group_tables_are_in_the_json_output(surestep, recipe):
    words = ("--json", "--optim.layerwise-lr-decay", "0.25", *GROUPS)
    found = json.loads(surestep("plan", recipe(), *words).out)
    assert found["layers"][0] == {
        **{"layer": 1, "modules": ["0"], "parameters": 40, "factor": 0.25, "lr": 0.0025}
    }
    last = found["groups"][-1]
    assert (last["names"], last["frozen"], last["parameters"]) == (["0.bias"], "for good", 8)
    assert json.loads(surestep("plan", recipe(), "--json").out)["layers"] is None


def test_plan_shows_that_a_custom_optimizer_sets_its_learning_rates(surestep, recipe):
    recipe(OWN.replace("nn.Linear(4, 3)", "nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))"))
    found = surestep("plan", "mine.py", "--optim.layerwise-lr-decay", "0.5").out
    assert " layer 2, decay its own its own 12 - " in found
    assert " layer 1, no decay 0.5 x its own 0 4 - " in found


def test_parameters_frozen_by_the_model_are_named(surestep, recipe):
    frozen = "nn.Linear(4, 3).requires_grad_(False)"
    recipe(OWN.replace("nn.Linear(4, 3)", f"nn.Sequential({frozen}, nn.Linear(3, 3))"))
    assert " requires_grad=False - - 15 for good " in surestep("plan", "mine.py").out


@pytest.mark.parametrize("said", ["3 freeze", "type:Conv2d lr=1"])
def test_pattern_that_matches_nothing_is_a_usage_error(surestep, recipe, said):
    found = surestep("plan", recipe(), "--optim.groups", said)
    assert found.code == 2
    assert "matches no" in found.err


SEVERAL = f"""{HEAD}
config = surestep.Config(epochs=1)

def task():
    return surestep.Task(
        model=nn.ModuleDict({{"actor": nn.Linear(4, 3), "critic": nn.Linear(4, 1)}}),
        train=(x,), step=print,
        optimizers={{"actor": surestep.Optim(lr=0.5, groups=["bias freeze"]),
                    "critic": surestep.Optim(lr=0.25)}})
"""


def test_each_of_several_optimizers_has_its_groups(surestep, recipe):
    found = surestep("plan", recipe(SEVERAL)).out
    for row in (
        " actor: decay 0.5 0.01 12 - ",
        " actor: bias - - 3 for good ",
        " critic: no decay 0.25 0 1 - ",
    ):
        assert row in found
