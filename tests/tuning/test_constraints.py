"""Constraints on what a trial measured; each is one of Optuna's."""

import json
import math
from dataclasses import replace

import numpy as np
import optuna
import pytest

from surestep.base.errors import ConfigError
from surestep.recipes.load import call_recipe, load
from surestep.tuning.constraints import describe_violations, parse_constraint
from surestep.tuning.open import open_study
from surestep.tuning.options import SearchOptions, make_settings
from surestep.tuning.report import describe_study
from surestep.tuning.settings import read_settings
from surestep.tuning.table import find_best, tabulate_trials
from surestep.tuning.warm_start import add_warm_start, choose_warm_start
from surestep.tuning.worker import best_rows
from tests.tuning import studies_on_disk
from tests.tuning.studies_on_disk import loss, make_study, open_by_optuna

WHERE = ("peak_memory < 5GB", "accuracy >= 0.3")
TWO = (("val/loss", "min"), ("seconds", "min"))


@pytest.mark.parametrize(
    ("text", "name", "limit"),
    [
        ("memory < 8GB", "peak_memory", 8e9),
        ("peak_memory<=1.5 GiB", "peak_memory", 1.5 * 2**30),
        ("peak_memory > 4e9", "peak_memory", 4e9),
        ("parameters < 10M", "parameters", 1e7),
        ("seconds <= 90 s", "seconds", 90),
        ("seconds < 2h", "seconds", 7200),
        ("seconds < 12", "seconds", 12),
        ("val/accuracy >= 0.9", "val/accuracy", 0.9),
        ("val/score > -0.5", "val/score", -0.5),
    ],
)
def test_constraint_is_a_name_a_comparison_and_a_number_with_the_unit_of_the_name(
    text, name, limit
):
    found = parse_constraint(text)
    assert (found.name, found.limit) == (name, pytest.approx(limit))
    assert parse_constraint(found.text) == found


@pytest.mark.parametrize(
    "text", ["memory 8GB", "memory < 8 apples", "val/loss < 8GB", "seconds < soon", "< 3", "a = 3"]
)
def test_text_that_is_no_constraint_is_explained(text):
    with pytest.raises(ConfigError, match=r"is not a comparison with a number\. Write a name"):
        parse_constraint(text)


@pytest.mark.parametrize(
    ("text", "feasible"),
    [
        ("a < 2", [True, False, False]),
        ("a <= 2", [True, True, False]),
        ("a > 2", [False, False, True]),
        ("a >= 2", [False, True, True]),
    ],
)
def test_limit_itself_satisfies_only_the_comparisons_that_include_it(text, feasible):
    one = parse_constraint(text)
    violations = [one.measure_violation({"a": value}) for value in (1.0, 2.0, 3.0)]
    assert [value <= 0 for value in violations] == feasible
    assert one.measure_violation({}) > 0
    assert one.measure_violation({"a": math.nan}) > 0
    assert describe_violations([one], {"a": 2.0}) == ("" if feasible[1] else f"violates {text}")


def measure(trial):
    """Return the values of two objectives, and what a trial measured."""
    memory, accuracy = 1e9 * trial.params["b"], 1.0 - trial.number % 4 / 4
    values = (loss(trial.params), float(trial.number * 7 % 12))
    return values, {"peak_memory": memory, "accuracy": accuracy}


def run(study):
    """Run all trials of a study with one or two objectives."""
    while (trial := study.claim_trial()) is not None:
        values, measured = measure(trial)
        study.report(trial, 1, values[0])
        study.finish(trial, values[: len(study.settings.objectives)], 1.0, measured)
    return study.rows()


@pytest.mark.parametrize("objectives", [TWO[:1], TWO])
def test_best_trials_are_those_of_optuna_alone(objectives, tmp_path):
    study = make_study(tmp_path, objectives=objectives, where=WHERE, pruner="none", trials=24)
    rows = run(study)
    alone = open_by_optuna(tmp_path)
    assert {row.is_feasible for row in rows} == {True, False}
    for row, trial in zip(rows, alone.trials, strict=True):
        measured = measure(row)[1]
        expected = measured["peak_memory"] < 5e9 and measured["accuracy"] >= 0.3
        assert row.is_feasible == expected
        assert list(trial.constraints) == list(WHERE)
        assert all(value <= 0 for value in trial.constraints.values()) == expected
        assert row.reason.startswith("violates ") == (not expected)
    best = find_best(rows, objectives)
    expected = alone.best_trials if len(objectives) > 1 else [alone.best_trial]
    assert best == [trial.user_attrs["number"] for trial in expected]
    without = [replace(row, is_feasible=True) for row in rows]
    assert best != find_best(without, objectives)
    assert all(row.is_feasible for row in best_rows(rows, study))
    columns, cells = tabulate_trials(rows, objectives, study.settings.space, None, ("peak_memory",))
    at = columns.index("peak_memory")
    assert [float(line[at]) for line in cells] == [row.measured["peak_memory"] for row in rows]


@pytest.mark.filterwarnings("ignore:PedAnovaImportanceEvaluator computes the importances of")
@pytest.mark.parametrize("objectives", [TWO[:1], TWO])
def test_importances_are_those_of_optuna_alone(objectives, tmp_path):
    study = make_study(tmp_path, objectives=objectives, pruner="none", trials=24)
    run(study)
    alone = open_by_optuna(tmp_path)
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=5 / 24)
    found = describe_study(study)["importances"]
    for index, (name, _) in enumerate(objectives):
        expected = optuna.importance.get_param_importances(
            alone, evaluator=evaluator, target=lambda trial, index=index: trial.values[index]
        )
        assert found[name] == pytest.approx(expected)


GP = pytest.param("gp", marks=pytest.mark.slow("fits Gaussian processes"))


@pytest.mark.parametrize("sampler", ["tpe", GP])
def test_proposals_are_those_of_optuna_with_the_same_constraints(sampler, tmp_path):
    study = make_study(tmp_path, sampler=sampler, where=WHERE, pruner="none", trials=13, seed=5)
    rows = run(study)
    mine = open_by_optuna(tmp_path).trials
    classes = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}
    seed = int(np.random.SeedSequence([5, 12]).generate_state(1)[0])
    plain = optuna.create_study(sampler=classes[sampler](seed=seed))
    for number, trial in enumerate(mine[:12]):
        values, measured = measure(rows[number])
        plain.add_trial(
            optuna.trial.create_trial(
                value=values[0],
                params=trial.params,
                distributions=trial.distributions,
                constraints={
                    WHERE[0]: measured["peak_memory"] - 5e9 or math.ulp(5e9),
                    WHERE[1]: 0.3 - measured["accuracy"],
                },
            )
        )
    asked = plain.ask(study.settings.space.distributions())
    assert study.settings.space.values_of(asked.params) == rows[12].params


def test_pruned_and_repeated_trials_have_constraints(tmp_path):
    study = make_study(tmp_path, space={"b": [3, 9]}, where=WHERE[:1], trials=6, sampler="random")
    pruned = study.claim_trial()
    study.report(pruned, 1, 0.5)
    study.prune(pruned, "pruned", 1.0, measure(pruned)[1])
    run_answered(study)
    for row in study.rows():
        assert row.is_feasible == (row.params["b"] == 3)
        assert row.measured["peak_memory"] == 1e9 * row.params["b"]
    assert {row.same_as is None for row in study.rows()} == {True, False}


def run_answered(study):
    while (trial := study.claim_trial()) is not None:
        if not study.answer(trial):
            values, measured = measure(trial)
            study.finish(trial, values[:1], 1.0, measured)


def test_trials_of_another_study_have_the_constraints_of_this_one(tmp_path):
    source = make_study(tmp_path / "source", pruner="none", trials=9)
    rows = run(source)
    settings = studies_on_disk.make_settings(where=WHERE, sampler="gp:startup=3", trials=1)
    settings, _ = choose_warm_start(settings, tmp_path / "source", None)
    study = open_study(tmp_path / "new", settings)
    add_warm_start(study)
    run(study)
    added = open_by_optuna(tmp_path / "new").trials[:9]
    for row, trial in zip(rows, added, strict=True):
        expected = [parse_constraint(text).measure_violation(row.measured) for text in WHERE]
        assert list(trial.constraints.values()) == expected
    other = studies_on_disk.make_settings(where=("val/f1 > 0.5",))
    with pytest.raises(ConfigError, match=r"No trial of .* has a result"):
        choose_warm_start(other, tmp_path / "source", None)


def settings_of(*where, recorded=None):
    call = call_recipe(load("digits"), {}, {})
    given = SearchOptions(trials=2, space={"optim.lr": [1e-3, 1e-2]}, where=where)
    return make_settings(call, given, recorded)


def test_constraint_has_the_full_name_of_its_metric():
    found = settings_of("accuracy >= 0.9", "memory < 8 GB", "memory < 8 GB").where
    assert found == ("val/accuracy >= 0.9", "peak_memory < 8 GB")


def test_metric_that_no_trial_measures_is_rejected():
    with pytest.raises(ConfigError, match=r"The constraint 'accuracyy' is not measured.*accuracy"):
        settings_of("accuracyy > 0.9")


def test_constraints_of_a_study_cannot_be_changed(tmp_path):
    open_study(tmp_path, settings_of("accuracy > 0.9"))
    recorded = read_settings(tmp_path)
    assert settings_of(recorded=recorded).where == ("val/accuracy > 0.9",)
    assert settings_of("accuracy > 0.9", recorded=recorded).where == ("val/accuracy > 0.9",)
    with pytest.raises(ConfigError, match=r"where is \['val/accuracy > 0\.9'\] in .*, and now \["):
        open_study(tmp_path, settings_of("accuracy > 0.8", recorded=recorded))
    assert json.loads((tmp_path / "study.json").read_text())["where"] == ["val/accuracy > 0.9"]
