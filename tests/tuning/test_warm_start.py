"""A search that knows the trials of another study."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import optuna
import pytest

from surestep.base.errors import ConfigError
from surestep.tuning.open import open_study
from surestep.tuning.settings import read_settings
from surestep.tuning.warm_start import add_warm_start, choose_warm_start
from tests.tuning.studies_on_disk import (
    SPACE,
    make_settings,
    make_study,
    open_by_optuna,
    run_all,
    run_trial,
)


@pytest.fixture
def source(tmp_path):
    """Make a study with 12 trials that ended, and others that did not; return its folder."""
    study = make_study(tmp_path / "source", sampler="cmaes", trials=16)
    for _ in range(12):
        run_trial(study, study.claim_trial())
    study.fail(study.claim_trial(), "out of memory")
    study.hand_back(study.claim_trial(), "stopped")
    study.claim_trial()
    assert {row.state for row in study.rows()[:12]} == {"finished", "pruned"}
    return tmp_path / "source"


def start(folder, source, **options):
    """Start a study from another one; return it and the line about it."""
    settings, line = choose_warm_start(make_settings(**options), source, None)
    study = open_study(folder, settings)
    add_warm_start(study)
    return study, line


@pytest.mark.parametrize("sampler", ["tpe", "random", "tpe:startup=3"])
def test_proposals_are_those_of_optuna_after_add_trials(sampler, source, tmp_path):
    """Both storages are opened by Optuna alone, and its own `add_trials` is called."""
    study, line = start(tmp_path / "new", source, sampler=sampler, pruner="none", trials=4)
    run_all(study)
    assert line == f"12 of 12 trials of {source} are known."
    theirs = [t for t in open_by_optuna(source).trials if t.state.name in ("COMPLETE", "PRUNED")]
    mine = open_by_optuna(tmp_path / "new").trials
    assert len(mine) == 12 + 4
    for before, added in zip(theirs, mine, strict=False):
        assert (before.params, before.values, before.state, before.intermediate_values) == (
            *(added.params, added.values, added.state, added.intermediate_values),
        )
        assert not added.system_attrs  # cmaes has pickles there
    startup = 3 if "3" in sampler else 10
    for number, row in enumerate(study.rows()):
        seed = int(np.random.SeedSequence([0, number]).generate_state(1)[0])
        tpe = optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed)
        plain = optuna.create_study(
            sampler=tpe if sampler != "random" else optuna.samplers.RandomSampler(seed=seed)
        )
        plain.add_trials([*theirs, *mine[12 : 12 + number]])
        asked = plain.ask(study.settings.space.distributions())
        assert study.settings.space.values_of(asked.params) == row.params


def test_trials_of_the_other_study_are_not_trials_of_this_one(source, tmp_path):
    study, _ = start(tmp_path / "new", source, trials=3)
    assert study.rows() == []
    assert [trial.number for trial in run_all(study)] == [0, 1, 2]
    assert [row.number for row in study.rows()] == [0, 1, 2]
    assert all(row.same_as is None for row in study.rows())


def test_only_trials_in_the_space_are_added(source, tmp_path):
    space = {**SPACE, "b": "int(1, 4)"}
    _, line = start(tmp_path / "new", source, space=space)
    params = [trial.params for trial in open_by_optuna(source).trials[:12]]
    inside = [found for found in params if found["b"] <= 4]
    assert 0 < len(inside) < 12
    assert line == f"{len(inside)} of 12 trials of {source} are known."
    assert [t.params for t in open_by_optuna(tmp_path / "new").trials] == inside
    for other in ({"b": "int(1, 8)"}, {**SPACE, "c": [1, 2]}, {**SPACE, "b": "int(9, 10)"}):
        with pytest.raises(ConfigError, match=r"No trial of .* is in the space of this search"):
            choose_warm_start(make_settings(space=other), source, None)


def test_value_of_a_pruned_trial_is_its_last_one(tmp_path):
    """As Optuna itself records it."""
    source = make_study(tmp_path / "source", sampler="random", pruner="none", trials=2)
    run_trial(source, source.claim_trial())
    pruned = source.claim_trial()
    for number, value in enumerate([9.0, 4.0, 6.0], 1):
        source.report(pruned, number, value)
    source.prune(pruned, "worse than the median")
    start(tmp_path / "new", tmp_path / "source", sampler="random")
    theirs, mine = (
        [(t.values, t.intermediate_values) for t in open_by_optuna(folder).trials][:2]
        for folder in (tmp_path / "source", tmp_path / "new")
    )
    assert mine == theirs
    assert mine[1] == ([6.0], {1: 9.0, 2: 4.0, 3: 6.0})


def test_study_with_other_options_gives_its_results_without_their_curves(source, tmp_path):
    fixed = {"epochs": "9", "optim.betas": ("0.9", "0.95")}
    settings = replace(make_settings(), fixed=fixed)
    settings, line = choose_warm_start(settings, source, None)
    assert line.endswith("without their curves, since it differs: epochs.")
    study = open_study(tmp_path / "new", settings)
    add_warm_start(study)
    finished = [t for t in open_by_optuna(source).trials if t.state.name == "COMPLETE"]
    added = open_by_optuna(tmp_path / "new").trials
    assert [t.values for t in added] == [t.values for t in finished]
    assert [t.intermediate_values for t in added] == [{}] * len(finished)
    recipe = {"name": "formula", "path": "/formula.py", "sha256": "1"}
    _, line = choose_warm_start(make_settings(recipe=recipe), source, None)
    assert line.endswith("since it differs: the recipe.")


def test_pruner_compares_with_the_trials_of_the_other_study(source, tmp_path):
    study, _ = start(tmp_path / "new", source, pruner="median:startup=3,warmup=0")
    assert study.report(study.claim_trial(), 1, 1e9)


def test_other_objectives_are_rejected(source):
    with pytest.raises(ConfigError, match=r"objectives of .* are val/loss \(min\)\. Its trials"):
        choose_warm_start(make_settings(objectives=(("val/loss", "max"),)), source, None)


def test_workers_that_start_together_add_each_trial_once(source, tmp_path):
    settings, _ = choose_warm_start(make_settings(), source, None)
    together = threading.Barrier(4)

    def work(_):
        study = open_study(tmp_path / "new", settings)
        together.wait()
        add_warm_start(study)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(open_by_optuna(tmp_path / "new").trials) == 12


def test_worker_that_was_killed_while_it_added_trials_leaves_the_rest_to_the_next(
    source, tmp_path, monkeypatch
):
    settings, _ = choose_warm_start(make_settings(trials=2), source, None)
    study, left = open_study(tmp_path / "new", settings), [5]
    plain = study.add_trial

    def killed(trial):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        plain(trial)

    monkeypatch.setattr(study, "add_trial", killed)
    with pytest.raises(KeyboardInterrupt):
        add_warm_start(study)
    again = open_study(tmp_path / "new", settings)
    add_warm_start(again)
    add_warm_start(again)
    assert len(open_by_optuna(tmp_path / "new").trials) == 12
    recorded = read_settings(tmp_path / "new")
    same, line = choose_warm_start(make_settings(trials=9), source, recorded)
    assert (same.warm_start, line) == (recorded.warm_start, "")
    assert [trial.number for trial in run_all(again)] == [0, 1]
