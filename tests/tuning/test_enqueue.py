"""The points that the first trials have."""

import json

import numpy as np
import optuna
import pytest

from surestep.base.errors import ConfigError
from surestep.recipes.load import call_recipe, load
from surestep.tuning.enqueue import parse_points
from surestep.tuning.open import open_study
from surestep.tuning.options import SearchOptions, make_settings
from surestep.tuning.samplers import check_methods
from surestep.tuning.settings import read_settings
from surestep.tuning.space import Space
from tests.tuning import studies_on_disk
from tests.tuning.studies_on_disk import GRID, make_study, open_by_optuna, run_all

POINTS = ({"b": 3, "lr": 1e-3, "name": "y"}, {"name": [1, 2]}, {"lr": 1e-5})


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "qmc"])
def test_enqueued_trials_are_those_of_optuna(sampler, tmp_path):
    """The storage is opened by Optuna alone, and its own `enqueue_trial` is called."""
    study = make_study(tmp_path, sampler=sampler, enqueued=POINTS, trials=4, pruner="none", seed=5)
    run_all(study)
    alone = open_by_optuna(tmp_path)
    space = study.settings.space
    for number, point in enumerate(POINTS):
        seed = int(np.random.SeedSequence([5, number]).generate_state(1)[0])
        classes = {"tpe": optuna.samplers.TPESampler, "cmaes": optuna.samplers.CmaEsSampler}
        made = classes.get(sampler, optuna.samplers.RandomSampler)(seed=seed)
        plain = optuna.create_study(sampler=made)
        plain.add_trials(alone.trials[:number])
        plain.enqueue_trial(space.stored(point))
        mine, theirs = alone.trials[number], plain.ask(space.distributions())
        expected = plain.trials[number].system_attrs["fixed_params"]
        assert mine.system_attrs["fixed_params"] == expected
        assert mine.params.items() >= space.stored(point).items()
        if sampler != "qmc":
            assert mine.params == theirs.params
    assert "fixed_params" not in alone.trials[3].system_attrs


def test_values_that_the_sampler_added_to_a_point_are_kept_when_its_trial_is_resumed(tmp_path):
    study = make_study(tmp_path, enqueued=POINTS[1:], sampler="tpe:0")
    first, second = study.claim_trial(), study.claim_trial()
    study.hand_back(first, "stopped by Ctrl-C")
    study.finish(second, [0.1])
    again = study.claim_trial()
    assert (again.number, again.params) == (0, first.params)


def test_grid_has_the_enqueued_points_first_and_each_once(tmp_path):
    first = [{"b": 8, "name": "x"}, {"b": 1, "name": [1, 2]}]
    study = make_study(tmp_path, sampler="grid", space=GRID, enqueued=first, trials=24)
    tried = [trial.params for trial in run_all(study)]
    assert tried[:2] == first
    assert len({repr(params) for params in tried}) == 24
    space = study.settings.space
    assert [space.grid_index(space.grid_point(index)) for index in range(24)] == [*range(24)]
    with pytest.raises(ConfigError, match=r"has no value for name, and --sampler grid needs one"):
        check_methods(
            studies_on_disk.make_settings(sampler="grid", space=GRID, enqueued=({"b": 8},))
        )


def test_sobol_sequence_starts_after_the_enqueued_points(tmp_path):
    plain = run_all(make_study(tmp_path / "plain", sampler="qmc", trials=4))
    study = make_study(tmp_path / "study", sampler="qmc", trials=5, enqueued=POINTS[:1])
    assert [trial.params for trial in run_all(study)[1:]] == [trial.params for trial in plain]


@pytest.mark.parametrize(
    ("point", "text"),
    [
        ({"b": 9}, "b=9 is outside of int(1, 8)."),
        ({"b": 2.5}, "b=2.5 is outside of int(1, 8)."),
        ({"b": True}, "b=True is outside of int(1, 8)."),
        ({"lr": float("nan")}, "lr=nan is outside of log(1e-05, 0.1)."),
        ({"name": "z"}, "name='z' is outside of ['x', 'y', [1, 2]]."),
        ({"nme": "x"}, "nme is not in the space. Did you mean 'name'?"),
        ({"name": "x", "w": 1}, "w is in the space only if name is y."),
        ({"w": 1}, "w is in the space only if name is y."),
        (3, "3 is not a table of options."),
    ],
)
def test_point_outside_of_the_space_is_explained(point, text):
    space = Space.from_json({**studies_on_disk.SPACE, "if.name.y.w": "int(1, 4)"})
    with pytest.raises(ConfigError) as error:
        parse_points([{"b": 1}, point], space, "points.toml")
    assert str(error.value).startswith(f"points.toml, point 2: {text}")


def test_point_has_the_values_of_the_space():
    space = Space.from_json(
        {"task.a": "uniform(0, 1, step=0.1)", "task.b": [[1, 2], True, 8], "task.c": "int(1, 8)"}
    )
    point = {"task": {"a": 0.30000000000000004, "b": (1, 2)}, "task.c": 3.0}
    (found,) = parse_points([point], space, "enqueue")
    assert found == {"task.a": 0.3, "task.b": [1, 2], "task.c": 3}
    assert isinstance(found["task.c"], int)
    for value, choice in ((8.0, 8), (True, True)):
        (found,) = parse_points([{"task.b": value}], space, "enqueue")
        assert found["task.b"] is choice
    with pytest.raises(ConfigError, match="outside of"):
        parse_points([{"task.b": 1}], space, "enqueue")


def settings_of(space, recorded=None, **options):
    """Return the settings of a search of `digits`."""
    call = call_recipe(load("digits"), {}, {})
    given = SearchOptions(trials=2, space=space, **options)
    return make_settings(call, given, recorded)


def test_first_point_is_that_of_the_recipe(capsys):
    space = {
        "optim.lr": "log(1e-5, 1)",
        "task.width": "int(8, 512)",
        "optim.name": ["sgd", "adamw"],
    }
    call = call_recipe(load("digits"), {}, {})
    own = settings_of(space).enqueued[0]
    assert own["task.width"] == call.recipe.parameters["width"].default
    assert own["optim.lr"] == call.config.optim.lr
    assert own["optim.name"] == "adamw"
    points = [{"optim.lr": 0.5}, dict(own), {"task.width": 8}, {"optim.lr": 0.5}]
    found = settings_of(space, enqueue=points).enqueued
    assert found == (own, {"optim.lr": 0.5}, {"task.width": 8})
    assert capsys.readouterr().err == ""


def test_recipe_outside_of_the_space_is_reported(capsys):
    found = settings_of({"task.width": "int(4096, 8192)"}, enqueue=[{"task.width": 5000}])
    assert found.enqueued == ({"task.width": 5000},)
    err = capsys.readouterr().err
    assert err.startswith("No trial has the recipe's own values: task.width=")
    assert "is outside of int(4096, 8192).\n" in err


def test_points_of_a_study_cannot_be_changed(tmp_path):
    space = {"task.width": "int(8, 512)"}
    first = settings_of(space, enqueue=[{"task.width": 9}])
    open_study(tmp_path, first)
    recorded = read_settings(tmp_path)
    assert recorded.enqueued == first.enqueued
    for again in ([], [{"task.width": 9}]):  # without the option, or the same command
        assert settings_of(space, recorded, enqueue=again).enqueued == first.enqueued
    with pytest.raises(ConfigError, match=r"enqueued is \[.*\] in .*, and now \["):
        open_study(tmp_path, settings_of(space, recorded, enqueue=[{"task.width": 10}]))


def test_study_of_an_older_format_has_no_enqueued_points(tmp_path):
    make_study(tmp_path)
    path = tmp_path / "study.json"
    found = json.loads(path.read_text())
    del found["enqueued"]
    path.write_text(json.dumps({**found, "format": 2}))
    assert read_settings(tmp_path).enqueued == ()
