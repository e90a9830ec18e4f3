import tomllib
from types import MappingProxyType

import pytest

from surestep.base.errors import ConfigError
from surestep.recipes.load import RecipeCall, load
from surestep.tuning.rows import TrialRow
from surestep.tuning.space import Space, parse_space
from surestep.tuning.table import tabulate_trials


def call(fixed=MappingProxyType({}), name="digits"):
    """Return a recipe with options set on the command line."""
    recipe, places = load(name), dict.fromkeys(fixed, "command line")
    options = {name: value for name, value in fixed.items() if not name.startswith("task.")}
    arguments = {name[5:]: value for name, value in fixed.items() if name.startswith("task.")}
    return RecipeCall(
        recipe,
        recipe.config.replace_options(options, places),
        recipe.typed(arguments, places),
        {**dict.fromkeys(recipe.config.set_options(), f"recipe {name}"), **places},
    )


def faults(values, fixed=MappingProxyType({})):
    """Return the lines of the error for a space, whose line numbers are the order of `values`."""
    places = {name: f"space.toml:{line}" for line, name in enumerate(values, 1)}
    with pytest.raises(ConfigError) as error:
        parse_space(values, places, call(fixed))
    return str(error.value).split("\n")


def test_names_are_spelled_as_on_the_command_line_or_nested():
    values = {
        "batch-size": [16, 32],
        "optim": ["sgd", "adamw"],
        "schedule": {"warmup": "uniform(0, 0.1)"},
        "task.width": "logint(16, 64)",
    }
    assert parse_space(values, {}, call()).as_json() == {
        "batch_size": [16, 32],
        "optim.name": ["sgd", "adamw"],
        "schedule.warmup": "uniform(0.0, 0.1)",
        "task.width": "logint(16, 64)",
    }


def test_order_of_the_names_does_not_matter():
    first = {"task.width": [16, 32], "optim.lr": "log(1e-4, 1)"}
    assert parse_space(first, {}, call()) == parse_space(dict([*first.items()][::-1]), {}, call())


def test_all_faults_are_reported_at_once_with_their_lines():
    found = faults(
        {
            "optim.lrr": "log(1e-5, 1e-2)",
            "task.widthh": "logint(16, 256)",
            "optim": ["sgdd", "adamw"],
            "batch-size": "uniform(16, 32)",
            "learning_rate": "log(1e-5, 1e-2)",
            "task.dropout": ["a", 0.5],
            "optim.weight_decay": "uniform(-1, 1)",
            "epochs": "int(0, 3)",
            "seed": [1],
        }
    )
    expected = {
        1: "There is no option 'optim.lrr'. Did you mean 'optim.lr'?",
        2: "digits's task has no parameter 'widthh'. Did you mean 'width'?",
        3: "optim.name='sgdd' is not allowed",
        4: "it must be a valid integer, got a number with a fractional part. Write int(16, 32).",
        5: "There is no option 'learning_rate'. Use optim.lr='log(1e-05, 0.01)'.",
        6: "task.dropout='a' is not allowed",
        7: "optim.weight_decay=-1.0 is not allowed",
        8: "epochs=0 is not allowed",
        9: "seed: [1] has a single choice",
    }
    for line, text in expected.items():
        assert [fault for fault in found if f"space.toml:{line}: " in fault and text in fault], text
    assert {fault.partition(": ")[0] for fault in found} == {
        f"space.toml:{line}" for line in expected
    }


def test_name_that_is_there_twice_is_rejected():
    (fault,) = faults({"optim.lr": [1, 2], "optim": {"lr": [3, 4]}})
    assert fault == "space.toml:1: optim.lr: it is in the space twice. Leave one out."


@pytest.mark.parametrize(
    ("values", "fixed", "text"),
    [
        ({"optim.lr": [1, 2]}, {"optim.lr": "3"}, "and it is set on the command line"),
        ({"task.width": [16, 32]}, {"task.width": "64"}, "and it is set on the command line"),
        ({"epochs": [1, 2]}, {"max_steps": "9"}, "and max_steps is set on the command line"),
    ],
)
def test_option_that_is_fixed_too_is_rejected(values, fixed, text):
    (fault,) = faults(values, fixed)
    assert fault.startswith("space.toml:1: ")
    assert text in fault


def test_option_of_the_recipe_may_be_searched():
    assert "optim.lr" in call().set_options
    assert parse_space({"optim.lr": [1, 2], "epochs": [1, 2]}, {}, call()).names == (
        *("epochs", "optim.lr"),
    )


def test_both_lengths_of_the_run_are_rejected():
    first, second = faults({"epochs": [1, 2], "max_steps": [10, 20]})
    assert "epochs is in the space, and max_steps is also there" in first
    assert "max_steps is in the space, and epochs is also there" in second


@pytest.mark.parametrize("values", [{}, {"optim": {}}])
def test_empty_space_is_rejected(values):
    with pytest.raises(ConfigError, match=r"space is empty|not a range or a list"):
        parse_space(values, {}, call())


def test_error_of_a_dict_has_the_line_of_the_call():
    with pytest.raises(ConfigError, match=r"test_space\.py:\d+: optim\.lr: 3 is a single value"):
        parse_space({"optim.lr": 3}, {}, call())


SPACE = {"a": [None, [1, 2]], "b": "int(1, 3)", "c": "uniform(0, 1, step=0.5)"}


def test_grid_has_each_combination_once():
    space = Space.from_json(SPACE)
    points = [space.grid_point(index) for index in range(space.grid_size)]
    assert space.grid_size == len(points) == 2 * 3 * 3
    assert len({repr(point) for point in points}) == 18
    assert points[-1] == {"a": [1, 2], "b": 3, "c": 1.0}


def test_grid_needs_values_that_can_be_counted():
    with pytest.raises(ConfigError, match=r"b = 'log\(1\.0, 2\.0\)' has no finite number"):
        _ = Space.from_json({"a": [1, 2], "b": "log(1, 2)"}).grid_size
    with pytest.raises(ConfigError, match=r"1,001,000 points, and at most 1,000,000"):
        _ = Space.from_json({"a": "int(1, 1000)", "b": "int(0, 1000)"}).grid_size


def test_json_that_is_not_a_space_is_rejected_with_all_faults():
    with pytest.raises(ConfigError, match=r"(?s)a: .*\nc: "):
        Space.from_json({"a": 1, "b": [1, 2], "c": "log(0, 1)"})


CONDITIONAL = {
    "optim.name": ["adamw", "sgd"],
    "task.wide": [True, False],
    "if.optim.name.adamw.optim.lr": "log(1e-4, 1e-2)",
    "if.optim.name.sgd.optim.lr": "log(1e-2, 1)",
}


def conditional(extra):
    return Space.from_json({**CONDITIONAL, **extra})


def test_trial_has_the_dimensions_whose_conditions_it_meets():
    space = conditional({"if.optim.name.sgd.if.task.wide.true.task.depth": "int(1, 3)"})
    lows = {
        (name, wide): space.choose(
            lambda one, choices=(name, wide): (
                choices[one.name == "task.wide"] if one.kind == "choice" else one.low
            )
        )
        for name in ("adamw", "sgd")
        for wide in (True, False)
    }
    for (name, wide), values in lows.items():
        deep = name == "sgd" and wide
        expected = {"optim.name": name, "task.wide": wide}
        expected |= {"optim.lr": 1e-2 if name == "sgd" else 1e-4}
        assert values == {**expected, **({"task.depth": 1} if deep else {})}
        stored = space.stored(values)
        assert ("task.depth" in stored) == deep
        assert f"optim.lr if optim.name={name}" in stored
        assert space.values_of(stored) == values
    assert space.names == ("optim.name", "task.wide", "optim.lr", "task.depth")


def test_space_with_conditions_is_the_same_after_json():
    space = conditional({"if.task.wide.true.if.optim.name.sgd.task.depth": "int(1, 3)"})
    again = Space.from_json(space.as_json())
    assert again == space
    assert [one.path for one in space.dimensions][-1] == (
        "if.task.wide.true.if.optim.name.sgd.task.depth"
    )


def test_tables_and_dicts_are_read_as_conditions():
    table = """
    optim.name = ["adamw", "sgd"]
    batch-size = [16, 32]
    [if.optim.name.sgd]
    optim.momentum = "uniform(0.5, 0.9)"
    [if.batch-size.32.schedule]
    warmup = "uniform(0, 0.1)"
    """
    nested = {
        "optim": ["adamw", "sgd"],
        "batch_size": [16, 32],
        "if": {
            "optim.name": {"sgd": {"optim.momentum": "uniform(0.5, 0.9)"}},
            "batch_size": {32: {"schedule.warmup": "uniform(0, 0.1)"}},
        },
    }
    space = parse_space(nested, {}, call())
    assert parse_space(tomllib.loads(table), {}, call()) == space
    assert space.names == ("batch_size", "optim.name", "optim.momentum", "schedule.warmup")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("if.optim.nme.sgd.optim.lr", "it depends on an option that is not in the space"),
        ("if.optim.name.sgdd.optim.lr", "optim.name, whose choices are adamw, sgd. Write a table"),
        ("if.optim.weight_decay.0.optim.lr", "optim.weight_decay, which has no list of choices"),
        ("if.optim.name.sgd.optim.weight_decay", "it is in the space twice"),
        ("if.optim.name.sgd.if.optim.beta.1.optim.lr", "it depends on an option"),
    ],
)
def test_condition_that_no_trial_can_meet_is_explained(name, text):
    space = {"optim.name": ["adamw", "sgd"], "optim.weight_decay": "uniform(0, 1)"}
    (fault,) = faults({**space, name: "log(1e-4, 1)"})
    assert fault.startswith(f"space.toml:3: {name}: ")
    assert text in fault


def test_dimension_is_tried_with_what_it_depends_on():
    """AdamW rejects a momentum."""
    values = {"optim.name": ["adamw", "sgd"], "if.optim.name.sgd.optim.momentum": [0.8, 0.9]}
    assert "optim.momentum" in parse_space(values, {}, call()).names
    (fault,) = faults({**values, "if.optim.name.sgd.optim.nesterov": ["yess", "true"]})
    assert fault.startswith("space.toml:3: optim.nesterov=")


def test_grid_has_each_combination_that_a_trial_can_have_once():
    space = Space.from_json(
        {
            "a": ["x", "y", "z"],
            "if.a.x.b": "int(1, 3)",
            "if.a.y.b": [7, 8],
            "if.a.y.if.b.7.c": "uniform(0, 1, step=0.5)",
            "d": [True, False],
        }
    )
    assert space.grid_size == 2 * (3 + (3 + 1) + 1) == 16
    points = [space.grid_point(index) for index in range(16)]
    assert len({repr(sorted(point.items())) for point in points}) == 16
    for point in points:
        assert point == space.values_of(space.stored(point))
        assert ("b" in point) == (point["a"] != "z")
        assert ("c" in point) == (point.get("b") == 7)


def test_rate_that_is_searched_and_found_has_two_titles():
    space = parse_space({"optim.lr": ["find", 0.1]}, {}, call())
    row = TrialRow(0, "finished", {"optim.lr": "find"}, (1.0,), {}, 1.0, 1, "r", "")
    row.measured["optim.lr"] = 0.064
    columns, ((*cells,),) = tabulate_trials([row], [("val/loss", "min")], space)
    shown = dict(zip(columns, cells, strict=True))
    assert (shown["optim.lr"], shown["optim.lr found"]) == ("find", "0.064")
