from dataclasses import replace

import pytest

from surestep.base.errors import RecipeError, TaskError
from surestep.recipes.load import call_recipe, load
from surestep.tuning.options import SearchOptions, make_settings

RECIPE = """
import torch
from torch import nn
import surestep

config = surestep.Config(max_steps=2, batch_size=8)
x = torch.randn(16, 4)


def build(width: int, heads: int) -> nn.Module:
    if width % heads:
        raise ValueError(f"{width} is not a multiple of {heads}")
    return nn.Linear(4, 3)


def task(width: int = 4, heads: int = 2, late: bool = False) -> surestep.Task:
    model = (lambda: build(width, heads)) if late else build(width, heads)
    data = (x, x[:, :3].argmax(dim=1))
    return surestep.Task(model=model, loss=nn.CrossEntropyLoss(), train=data, val=data)
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "split_heads.py"
    path.write_text(RECIPE)
    return load(str(path))


@pytest.fixture
def settings(recipe):
    """Return the settings of a search with these values, and with options for all trials."""

    def make(space, *, trials=2, sampler="tpe", **fixed):
        options = {f"task.{name}": value for name, value in fixed.items()}
        call = call_recipe(recipe, options, dict.fromkeys(options, "command line"))
        return make_settings(call, SearchOptions(trials=trials, space=space, sampler=sampler), None)

    return make


def test_value_that_the_recipe_rejects_is_left_to_its_trial(settings, capsys):
    found = settings({"task.width": [3, 4]})
    assert found.objectives == (("val/loss", "min"),)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("late", [False, True])
def test_metrics_are_those_of_the_space_if_the_defaults_are_rejected(settings, capsys, late):
    found = settings({"task.width": [5, 6], "optim.lr": "log(1e-3, 1)"}, heads=3, late=late)
    assert found.objectives == (("val/loss", "min"),)
    error, metrics = capsys.readouterr().err.splitlines()
    assert error.startswith("split_heads raised with its defaults: ")
    assert "4 is not a multiple of 3" in error
    assert metrics == "The metrics are those that it has with optim.lr=0.001, task.width=6."


def test_error_of_the_defaults_is_printed_without_secrets(settings, capsys, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "is not a multiple")
    settings({"task.width": [5, 6]}, heads=3, late=False)
    assert "4 *** of 3" in capsys.readouterr().err


@pytest.mark.parametrize(("late", "error"), [(False, RecipeError), (True, TaskError)])
def test_recipe_that_rejects_the_whole_space_cannot_be_searched(settings, late, error):
    with pytest.raises(error, match="4 is not a multiple of 3") as raised:
        settings({"task.width": [5, 7]}, heads=3, late=late)
    assert "also raised with each combination" in raised.value.__notes__[0]


@pytest.mark.parametrize(("trials", "expected"), [(None, 4), (3, 3), (4, 4), (9, 4)])
def test_grid_is_searched_whole_and_not_twice(settings, trials, expected):
    space = {"task.width": [4, 6], "task.heads": [1, 2]}
    assert settings(space, trials=trials, sampler="grid").trials == expected


@pytest.mark.parametrize(
    ("objectives", "pruner"),
    [((), "percentile:25"), (("val/loss",), "percentile:25"), (("val/loss", "seconds"), "none")],
)
def test_default_pruner_of_one_objective_and_of_several(recipe, objectives, pruner):
    options = SearchOptions(trials=2, space={"task.width": [2, 4]}, objectives=objectives)
    call = call_recipe(recipe, {}, {})
    assert make_settings(call, options, None).pruner == pruner
    typed = make_settings(call, replace(options, pruner="none"), None)
    assert typed.pruner == "none"
    assert make_settings(call, options, replace(typed, pruner="median")).pruner == "median"
