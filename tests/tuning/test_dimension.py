import math

import numpy as np
import optuna
import pytest

from surestep.tuning.dimension import parse_dimension

TEXTS = {
    "log(1e-5, 1e-2)": "log(1e-05, 0.01)",
    " LOG(1e-5,1e-2) ": "log(1e-05, 0.01)",
    "uniform(-1, 1)": "uniform(-1.0, 1.0)",
    "uniform(0, 0.5, step=0.1)": "uniform(0.0, 0.5, step=0.1)",
    "int(16, 256)": "int(16, 256)",
    "int(16, 256, step=16)": "int(16, 256, step=16)",
    "int(-3, +1_000)": "int(-3, 1000)",
    "logint(1, 1k)": "logint(1, 1000)",
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_read_and_written_in_one_form(text):
    dimension = parse_dimension("x", text)
    assert dimension.as_json() == TEXTS[text]
    assert parse_dimension("x", dimension.as_json()) == dimension


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1e-3", r"'1e-3' is not a range\. Write log\(1e-5, 1e-2\)"),
        ("int(1, 5", "is not a range"),
        ("lag(1, 2)", r"no range 'lag'\. Did you mean 'log'"),
        ("log(0, 1)", r"logarithm of 0 is not defined\. Start above 0, such as log\(1e-06, 1\)"),
        ("logint(-2, 8)", r"such as logint\(1, 10\)"),
        ("log(1, 0.1)", r"1 is not below 0\.1\. Write log\(0\.1, 1\)"),
        ("int(3, 3)", r"is empty: 3 is not below 3\. Set the option itself"),
        ("int(1)", "lowest and a highest"),
        ("int(1, 2, 3)", "lowest and a highest"),
        ("int(step=1, 1, 3)", "lowest and a highest"),
        ("int(1, 9, stp=2)", "'stp=2' is not a number"),
        ("int(a, 9)", "'a' is not a number"),
        ("uniform(nan, 1)", "'nan' is not a number"),
        ("uniform(0, inf)", "'inf' is not a number"),
        ("uniform(0, 1e400)", "'1e400' is not a number"),
        ("int(0.5, 2)", r"0\.5 is not an integer"),
        ("int(0, 9007199254740993)", "is not an integer"),
        ("log(1, 9, step=2)", "a logarithmic range has no step"),
        ("int(1, 9, step=0)", r"step=0 is not above 0"),
        ("uniform(0, 1, step=2)", r"step=2 is longer"),
        (
            "int(1, 12345678, step=4)",
            r"do not reach 12345678\. Write int\(1, 12345677, step=4\)",
        ),
        ("uniform(0, 1, step=0.3)", r"Write uniform\(0, 0\.9, step=0\.3\)"),
        (3, "3 is a single value"),
        (None, "None is a single value"),
        ({}, "is not a range or a list"),
        ([], "the list of choices is empty"),
        ([1], r"\[1\] has a single choice"),
        (["a", "a"], "'a' and 'a' are equal"),
        ([0, False], "0 and False are equal"),
        ([[1, 2], "[1, 2]"], "are equal"),
        ([1.0, math.nan], "nan cannot be a choice"),
        ([{}, 1], r"\{\} cannot be a choice"),
    ],
)
def test_each_fault_has_its_message(value, message):
    with pytest.raises(ValueError, match=message):
        parse_dimension("x", value)


@pytest.mark.parametrize("text", [*TEXTS, "logint(3, 4)", "int(0, 10000, step=2500)"])
def test_values_are_those_that_optuna_allows(text):
    dimension = parse_dimension("x", text)
    distribution = dimension.distribution()
    for share in np.linspace(0, 1, 101):
        value = dimension.value_at(float(share))
        assert distribution._contains(distribution.to_internal_repr(value))
        assert isinstance(value, int) is dimension.is_whole
    assert dimension.value_at(0.0) == dimension.low
    assert dimension.value_at(1.0) == dimension.high


@pytest.mark.parametrize("kind", ["int", "uniform"])
def test_each_value_of_a_range_with_steps_has_the_same_share(kind):
    dimension = parse_dimension("x", f"{kind}(2, 6, step=2)")
    drawn = [dimension.value_at((index + 0.5) / 300) for index in range(300)]
    assert [drawn.count(value) for value in (2, 4, 6)] == [100, 100, 100]


def test_values_of_a_dimension_are_counted_and_listed():
    def values(text):
        dimension = parse_dimension("x", text)
        return [dimension.nth(index) for index in range(dimension.n_values)]

    assert values("uniform(0, 0.3, step=0.1)") == [0.0, 0.1, 0.2, 0.3]
    assert values("int(1, 9, step=4)") == [1, 5, 9]
    assert values("logint(1, 3)") == [1, 2, 3]
    assert values([None, "a", [1, 2]]) == [None, "a", [1, 2]]
    assert parse_dimension("x", "log(1, 2)").n_values is None


def test_probes_are_the_ends_and_a_value_between():
    assert parse_dimension("x", "int(1, 2)").probes() == [1, 2]
    low, between, high = parse_dimension("x", "log(16, 64)").probes()
    assert (low, high) == (16, 64)
    assert between % 1
    assert parse_dimension("x", ["a", [1]]).probes() == ["a", [1]]


@pytest.mark.parametrize("value", [None, True, "a", 2, 0.5, [0.9, 0.95], (1, "b")])
def test_choice_is_the_same_after_storing_it(value):
    dimension = parse_dimension("x", [value, "other"])
    study = optuna.create_study()
    study.enqueue_trial({"x": dimension.stored(value)})
    assert dimension.suggest(study.ask()) == value


def test_arrays_and_numbers_of_numpy_are_choices():
    assert parse_dimension("x", np.array([1, 2])).choices == (1, 2)
    assert parse_dimension("x", [np.float32(0.5), np.int64(2)]).choices == (0.5, 2)
