import sys

import numpy as np
import optuna
import pytest

from surestep.base.errors import ConfigError
from surestep.tuning.methods import PRUNERS, SAMPLERS, complete_method, parse_method
from surestep.tuning.samplers import check_methods, make_pruner, make_sampler
from surestep.tuning.space import Space
from tests.tuning.studies_on_disk import (
    GRID,
    SPACE,
    loss,
    make_settings,
    make_study,
    open_by_optuna,
    run_all,
)


def space_for(sampler):
    return GRID if sampler == "grid" else SPACE


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_proposals_follow_from_seed_and_number(sampler, tmp_path):
    def proposals(folder, seed):
        study = make_study(tmp_path / folder, sampler=sampler, seed=seed, space=space_for(sampler))
        return [trial.params for trial in run_all(study)]

    first = proposals("first", seed=1)
    assert first == proposals("again", seed=1)
    assert first != proposals("other", seed=2)
    assert len({repr(params) for params in first}) > 6


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_proposal_does_not_depend_on_the_worker(sampler, tmp_path):
    """Two workers take turns; each has its own objects, as a process would."""
    options = {"sampler": sampler, "space": space_for(sampler), "seed": 3}
    alone = [trial.params for trial in run_all(make_study(tmp_path / "alone", **options))]
    workers = [make_study(tmp_path / "both", **options) for _ in range(2)]
    shared = []
    for number in range(12):
        trial = workers[number % 2].claim_trial()
        for evaluation in (1, 2, 3):
            if workers[number % 2].report(trial, evaluation, loss(trial.params) + 1 / evaluation):
                workers[number % 2].prune(trial, "")
                break
        else:
            workers[number % 2].finish(trial, [loss(trial.params)])
        shared.append(trial.params)
    assert shared == alone


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "gp"])
def test_proposal_is_that_of_optuna_with_the_same_seed_and_trials(sampler, tmp_path):
    study = make_study(tmp_path, sampler=sampler, trials=16, pruner="none", seed=5)
    run_all(study)
    space = study.settings.space
    classes = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
        "cmaes": optuna.samplers.CmaEsSampler,
        "gp": optuna.samplers.GPSampler,
    }
    trials = study._study.trials
    for number in (0, 5, 12, 15):
        seed = int(np.random.SeedSequence([5, number]).generate_state(1)[0])
        plain = optuna.create_study(sampler=classes[sampler](seed=seed))
        plain.add_trials(trials[:number])
        asked = plain.ask(space.distributions())
        assert space.values_of(asked.params) == study.rows()[number].params


CONDITIONAL = {
    "b": "int(1, 8)",
    "name": ["x", "y"],
    "if.name.x.lr": "log(1e-5, 1e-3)",
    "if.name.y.lr": "log(1e-3, 1e-1)",
    "if.name.y.momentum": "uniform(0, 1)",
}


def suggest_dimension_by_dimension(trial):
    """Choose the values of CONDITIONAL as a program for Optuna alone does."""
    found = {"b": trial.suggest_int("b", 1, 8)}
    found["name"] = trial.suggest_categorical("name", ["x", "y"])
    if found["name"] == "x":
        found["lr"] = trial.suggest_float("lr if name=x", 1e-5, 1e-3, log=True)
    else:
        found["lr"] = trial.suggest_float("lr if name=y", 1e-3, 1e-1, log=True)
        found["momentum"] = trial.suggest_float("momentum", 0, 1)
    return found


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes"])
def test_space_with_conditions_is_that_of_optuna_dimension_by_dimension(sampler, tmp_path):
    study = make_study(tmp_path, sampler=sampler, pruner="none", space=CONDITIONAL, trials=16)
    run_all(study)
    classes = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
        "cmaes": optuna.samplers.CmaEsSampler,
    }
    alone = open_by_optuna(tmp_path)
    rows = study.rows()
    assert {row.params["name"] for row in rows} == {"x", "y"}
    for number in (0, 5, 12, 15):
        seed = int(np.random.SeedSequence([0, number]).generate_state(1)[0])
        plain = optuna.create_study(sampler=classes[sampler](seed=seed))
        plain.add_trials(alone.trials[:number])
        found = suggest_dimension_by_dimension(plain.ask())
        assert found == rows[number].params


@pytest.mark.parametrize("sampler", ["grid", "qmc"])
def test_points_of_a_space_with_conditions_have_what_a_trial_has(sampler, tmp_path):
    space = {**CONDITIONAL, "if.name.x.lr": [1, 2], "if.name.y.lr": [3, 4, 5]}
    space["if.name.y.momentum"] = "uniform(0, 1, step=0.5)"
    study = make_study(tmp_path, sampler=sampler, space=space, trials=8 * (2 + 9))
    run_all(study)
    rows = study.rows()
    for row in rows:
        names = {"b", "name", "lr"} | ({"momentum"} if row.params["name"] == "y" else set())
        assert row.params.keys() == names
        assert row.params["lr"] in ((1, 2) if row.params["name"] == "x" else (3, 4, 5))
    if sampler == "grid":
        assert len({str(row.params) for row in rows}) == 88


@pytest.mark.filterwarnings("ignore:QMCSampler is experimental")
def test_sobol_points_are_those_of_optuna(tmp_path):
    space = Space.from_json({"b": "int(1, 8)", "c": "logint(1, 100)", "lr": "log(1e-5, 1e-1)"})
    plain = optuna.create_study(sampler=optuna.samplers.QMCSampler(scramble=True, seed=7))
    plain.add_trial(  # Optuna draws the first trial at random, since it knows no space yet
        optuna.trial.create_trial(
            params={"b": 1, "c": 1, "lr": 0.1}, distributions=space.distributions(), value=0.0
        )
    )
    study = make_study(tmp_path, sampler="qmc", seed=7, space=space.as_json(), trials=8)
    for trial in run_all(study):
        asked = plain.ask(space.distributions())
        plain.tell(asked, 0.0)
        assert trial.params == pytest.approx(asked.params)


def test_grid_sampler_tries_each_combination_once(tmp_path):
    study = make_study(tmp_path, sampler="grid", space=GRID, trials=24)
    tried = [trial.params for trial in run_all(study)]
    assert len({repr(params) for params in tried}) == 8 * 3
    ordered = [study.settings.space.grid_point(index) for index in range(24)]
    assert tried != ordered  # so that few trials cover the space too


@pytest.mark.parametrize("pruner", [*PRUNERS, "percentile:50,warmup=1", "hyperband:factor=2,max=8"])
def test_pruner_prunes_the_worse_trials_only(pruner, tmp_path):
    study = make_study(tmp_path, pruner=pruner, trials=30, sampler="random", space=GRID)
    pruned = set()
    while (trial := study.claim_trial()) is not None:
        value = float(trial.number % 3)  # of three, one is good and one is bad
        for evaluation in range(1, 9):
            if study.report(trial, evaluation, value + 0.001 * trial.number + 0.01 * evaluation):
                study.prune(trial, "")
                pruned.add(value)
                break
        else:
            study.finish(trial, [value])
    assert (2.0 in pruned) == (pruner != "none")
    states = {row.number: row.state for row in study.rows() if row.number % 3 == 0}
    assert "finished" in states.values()


@pytest.mark.parametrize(
    ("pruner", "planned", "first"),
    [
        *(("median", 12, 4), ("median", 11, 3), ("median", 3, 1), ("percentile:60", 8, 3)),
        *(("patient:1", 8, 3), ("median:warmup=auto", 4, 2), ("median:warmup=0", 12, 1)),
        ("median:startup=3,warmup=2", 4, 3),
    ],
)
def test_warmup_evaluations_are_not_pruned(pruner, planned, first, tmp_path):
    study = make_study(tmp_path, pruner=pruner, trials=30, space=GRID)
    for _ in range(6):
        trial = study.claim_trial()
        for evaluation in range(1, 6):
            assert not study.report(trial, evaluation, 1.0, planned)
        study.finish(trial, [1.0])
    trial = study.claim_trial()
    pruned = [at for at in range(1, 6) if study.report(trial, at, 2.0 + at, planned)]
    assert pruned[0] == first


def test_warmup_is_a_quarter_of_the_evaluations_of_each_trial(tmp_path):
    study = make_study(tmp_path, pruner="median", trials=30)
    for _ in range(6):
        trial = study.claim_trial()
        for evaluation in range(1, 6):
            study.report(trial, evaluation, 1.0, 5)
        study.finish(trial, [1.0])
    first = []
    for planned in (16, 8, 16):
        trial = study.claim_trial()
        first.append(next(at for at in range(1, 6) if study.report(trial, at, 2.0, planned)))
    assert first == [5, 3, 5]


def test_pruner_with_startup_waits_for_that_many_trials(tmp_path):
    study = make_study(tmp_path, pruner="median:startup=2", trials=30)
    for number in range(3):
        trial = study.claim_trial()
        assert study.report(trial, 1, float(number)) is (number == 2)
        study.finish(trial, [float(number)])


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("sampler", "tp", r"There is no sampler 'tp'\. Did you mean 'tpe'"),
        ("sampler", "tpe:start=3", r"tpe has no option 'start'\. Did you mean 'startup'"),
        ("sampler", "random:3", r"random has no option '3'\. There are none"),
        ("sampler", "tpe:startup=x", r"startup=x is not an integer from 0"),
        ("sampler", "tpe:-1", r"startup=-1 is not an integer from 0"),
        ("pruner", "percentile:101", r"keep=101 is not a number from 0 to 100"),
        ("pruner", "halving:factor=1", r"factor=1 is not an integer from 2"),
        ("pruner", "median:2.5", r"startup=2\.5 is not an integer"),
        ("pruner", "wilcoxon:nan", r"p=nan is not a number"),
        ("pruner", "median:", r"startup= is not an integer from 0\."),
        ("pruner", "median:warmup=half", r"warmup=half is not an integer from 0, or auto\."),
        ("pruner", "median:startup=auto", r"startup=auto is not an integer from 0\."),
    ],
)
def test_method_that_does_not_exist_or_fit_is_explained(kind, text, message):
    with pytest.raises(ConfigError, match=message):
        parse_method(kind, text, SAMPLERS if kind == "sampler" else PRUNERS)


def test_options_of_methods_are_read_by_name_or_as_the_first():
    assert parse_method("pruner", "percentile:30, warmup=2", PRUNERS) == (
        *("percentile", {"keep": 30.0, "startup": 5, "warmup": 2}),
    )
    assert parse_method("sampler", " TPE ", SAMPLERS) == ("tpe", {"startup": 10})


def test_name_is_completed_by_the_options_that_are_not_set():
    found = [complete_method("pruner", text, PRUNERS) for text in ("median", "percentile:30.5")]
    assert found == ["median:startup=5,warmup=auto", "percentile:keep=30.5,startup=5,warmup=auto"]
    assert [complete_method("pruner", text, PRUNERS) for text in found] == found
    assert complete_method("pruner", "median:3", PRUNERS, auto=0) == "median:startup=3,warmup=0"
    assert complete_method("sampler", "random", SAMPLERS) == "random"


def test_options_reach_the_sampler():
    space = Space.from_json(SPACE)
    sampler = make_sampler("tpe:startup=3", space, 0, 0)
    assert sampler._n_startup_trials == 3
    assert make_pruner("hyperband:factor=5,min=2,max=9")._max_resource == 9


@pytest.mark.parametrize(
    ("name", "module"), [("cmaes", "cmaes"), ("gp", "scipy"), ("qmc", "scipy")]
)
def test_missing_package_is_named_with_its_command(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"{name} needs {module} .*Install it: pip install"):
        check_methods(make_settings(sampler=name))


def test_all_faults_of_the_methods_are_reported_at_once():
    settings = make_settings(sampler="tp", pruner="medan", space=GRID)
    with pytest.raises(ConfigError, match=r"(?s)no sampler 'tp'.*\n.*no pruner 'medan'"):
        check_methods(settings)
    with pytest.raises(ConfigError, match=r"(?s)lr = .* has no finite number.*\n.*no pruner"):
        check_methods(make_settings(sampler="grid", pruner="medan"))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("pruner", PRUNERS)
def test_several_objectives_work_or_are_rejected(sampler, pruner, tmp_path):
    options = {"sampler": sampler, "pruner": pruner, "space": space_for(sampler)}
    settings = make_settings(objectives=(("val/loss", "min"), ("seconds", "min")), **options)
    if sampler == "cmaes" or pruner != "none":
        with pytest.raises(ConfigError, match="needs a single objective, and there are 2"):
            check_methods(settings)
        return
    study = make_study(tmp_path, objectives=settings.objectives, **options)
    while (trial := study.claim_trial()) is not None:
        assert not study.report(trial, 1, 1e9)
        study.finish(trial, [loss(trial.params), trial.number])
    assert all(row.state == "finished" and len(row.values) == 2 for row in study.rows())
