"""Runs are compared by group, metric and step."""

import numpy as np
import pytest

from surestep.base.errors import RunError
from surestep.record.run import Run
from surestep.reports.align import align
from surestep.reports.curves import Curve
from surestep.reports.describe_runs import describe_runs
from tests.reports.folders import evaluation, log_point, write_run

VALUES = {0.1: [0.5, 0.6, 0.7], 0.01: [0.2, 0.3, 0.25], 1.0: [0.26, 0.45, 0.4]}


@pytest.fixture
def runs(tmp_path):
    """Three learning rates with three seeds each."""
    found = {}
    for rate, values in VALUES.items():
        for seed, value in enumerate(values):
            name = f"lr{rate}-{seed}"
            scores = {"val/accuracy": 1 - value, "val/unnamed": value}
            events = [log_point(1, [1.0, value]), evaluation(2, value, metrics=scores)]
            config = {"optim.lr": rate, "seed": seed}
            found[name] = Run(write_run(tmp_path / name, events, config=config, decided=config))
    return found


def test_runs_with_other_seeds_are_a_group(runs):
    data = describe_runs(runs)
    assert data["groups"] == ["optim.lr=0.1", "optim.lr=0.01", "optim.lr=1.0"]
    assert [run["group"] for run in data["runs"]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data["options"] == ["optim.lr", "seed"]
    assert data["runs"][4]["options"] == {"optim.lr": 0.01, "seed": 1}


def test_winner_of_each_metric_has_its_lead_and_the_spread_of_seeds(runs):
    loss, accuracy = describe_runs(runs)["winners"]  # whether "unnamed" should fall is not known
    assert (loss["metric"], loss["mode"], loss["group"], loss["second"]) == (
        "val/loss",
        "min",
        1,
        2,
    )
    assert loss["mean"] == pytest.approx(0.25)
    assert loss["lead"] == pytest.approx(0.37 - 0.25)
    assert loss["spread"] == pytest.approx(np.std(VALUES[1.0], ddof=1))
    assert loss["is_clear"] is True
    assert (accuracy["mode"], accuracy["group"]) == ("max", 1)


def test_lead_within_the_spread_and_lead_of_single_runs_are_not_clear(runs):
    close = {name: run for name, run in runs.items() if name in ("lr1.0-0", "lr0.01-1")}
    assert [one["is_clear"] for one in describe_runs(close)["winners"]] == [None, None]
    both = {**close, "lr1.0-1": runs["lr1.0-1"], "lr0.01-0": runs["lr0.01-0"]}
    (loss, _) = describe_runs(both)["winners"]
    assert loss["lead"] == pytest.approx(0.355 - 0.25)
    assert loss["is_clear"] is False


def test_lead_is_not_clear_if_a_seed_has_no_finite_value(runs):
    point = log_point(1, [1.0, "nan"], grad_norm=[1.0, 1.0])
    events = [point, evaluation(2, "nan", metrics={"val/loss": "nan"})]
    about = {"optim.lr": 0.01, "seed": 9}
    parent = next(iter(runs.values())).path.parent
    diverged = {"d": Run(write_run(parent / "d", events, config=about, decided=about))}
    (loss, *_) = describe_runs({**runs, **diverged})["winners"]
    assert (loss["group"], loss["runs"], loss["without"]) == (1, 3, 1)
    assert loss["is_clear"] is None


def test_metric_of_the_best_checkpoint_is_not_that_of_the_last_one(tmp_path):
    found = {}
    for name, rate in (("a", 0.1), ("b", 0.2)):
        about = {"optim.lr": rate}
        events = [log_point(1, [1.0, 0.5]), evaluation(2, rate)]
        for which, value in (("best", rate), ("last", 9.0)):
            events.append(evaluation(2, value, which=which, metrics={"test/loss": value}))
        found[name] = Run(write_run(tmp_path / name, events, config=about, decided=about))
    for run, rate in zip(describe_runs(found)["runs"], (0.1, 0.2), strict=True):
        assert run["metrics"] == {"val/loss": rate, "test/loss": rate}


def test_run_that_cannot_be_read_is_named_and_the_others_are_shown(runs):
    (runs["lr0.1-0"].path / "events.jsonl").write_text("nonsense\n")
    data = describe_runs(runs)
    assert len(data["runs"]) == 8
    assert "line 1 is not an event" in data["problems"]["lr0.1-0"]
    for run in runs.values():
        (run.path / "events.jsonl").write_text("nonsense\n")
    with pytest.raises(RunError, match="None of 9 runs can be read"):
        describe_runs(runs)


def test_short_curves_have_all_values_at_shared_steps():
    found = align(
        {
            0: Curve("a", np.array([1, 3]), np.array([1.0, 3.0])),
            4: Curve("a", np.array([2, 3]), np.array([20.0, np.nan])),
        },
        ranges=50,
    )
    assert found["steps"].tolist() == [1, 2, 3]
    first, second = found["curves"]
    np.testing.assert_array_equal(first["values"], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(second["values"], [np.nan, 20.0, np.nan])
    assert (second["run"], second["not_finite"]["count"]) == (4, 1)


def test_long_curves_have_the_extremes_and_the_mean_of_each_range():
    values = np.random.default_rng(0).normal(size=51_200)
    short = Curve("a", np.arange(25_000, 25_100), np.ones(100))
    found = align({0: Curve("a", np.arange(51_200), values), 1: short}, ranges=50)
    first, second = found["curves"]
    assert found["steps"][::2].tolist() == list(range(0, 51_200, 1024))
    for number, part in enumerate(values.reshape(50, 1024)):
        extremes = first["values"][2 * number : 2 * number + 2]
        assert sorted(extremes) == [part.min(), part.max()]
        assert first["means"][number] == pytest.approx(part.mean())
    assert np.flatnonzero(np.isfinite(second["means"])).tolist() == [24]


def test_name_of_a_group_has_few_options_and_no_other_group_has_it(tmp_path):
    found = {}
    for number in range(3):
        options = {name: number if name == "e" else number // 2 for name in "abcde"}
        config = {**options, "seed": 0}
        folder = write_run(tmp_path / str(number), [log_point(1, [1.0])], config=config)
        found[str(number)] = Run(folder)
    assert describe_runs(found)["groups"] == [
        *("a=0, b=0, c=0, ...", "a=0, b=0, c=0, ... (2)", "a=1, b=1, c=1, ...")
    ]
