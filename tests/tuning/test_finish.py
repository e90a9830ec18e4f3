import math
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from surestep.record.io import write_json
from surestep.tuning import confirm, finish
from surestep.tuning.confirm import Confirmed
from surestep.tuning.finish import (
    Winner,
    conclude,
    describe_winner,
    write_best,
    write_results,
)
from surestep.tuning.process import Ended
from surestep.tuning.table import find_best
from surestep.tuning.worker import WorkerOptions, best_rows
from tests.tracking.test_study import ALL, make_run
from tests.tuning.studies import make_rows, make_study

VALUES = {
    "optim.lr": 1e-05,
    "optim.weight_decay": 0.1 + 0.2,
    "task.hidden": 64,
    "task.name": 'a "quoted" \\ name \u2028',
    "task.bias": False,
    "task.sizes": (1, 2, 3),
    "max_steps": 10**12,
}


def winner(**more):
    return Winner(2, {"optim.lr": 0.01}, {"val/accuracy": 0.95}, **{"test": None, **more})


def test_options_of_the_winner_are_read_as_they_were(tmp_path):
    study = make_study([])
    study.folder = tmp_path
    values = {**VALUES, "checkpoint.mirror": "s3://bucket/search"}  # it has runs already
    path = write_best(study, Winner(0, values, {"val/accuracy": 0.5}, None))
    found = tomllib.loads(path.read_text())
    task, optim = found["task"], found["optim"]
    assert optim == {"lr": 1e-05, "weight_decay": 0.1 + 0.2}
    assert task.pop("sizes") == [1, 2, 3]
    assert task.pop("note") == "<img src=x onerror=alert(1)>"
    assert task == {"hidden": 64, "name": VALUES["task.name"], "bias": False}
    assert found["max_steps"] == 10**12
    assert "checkpoint" not in found


@pytest.mark.parametrize("confirm", [0, 2])
def test_checkpoints_that_are_kept_are_those_of_the_winner(confirm, tmp_path):
    study = make_study(make_rows(9))
    study.folder = tmp_path
    for row in study.rows():
        (tmp_path / "trials" / row.run / "checkpoints" / "step-00000001").mkdir(parents=True)
    best = [row.number for row in best_rows(study.rows(), study)]
    confirmed = [Confirmed(best[1], (0.9,), 0.9, 0.0), Confirmed(best[0], (0.8,), 0.8, 0.0)]
    worker = SimpleNamespace(
        study=study,
        options=WorkerOptions(keep_best=True, confirm=confirm),
        stops=SimpleNamespace(reason=""),
        run_job=lambda *_: Ended({"test": None}),
    )
    chosen = conclude(worker, None, confirmed[:confirm])
    left = {path.parts[-3] for path in tmp_path.glob("trials/*/checkpoints/step-*")}
    ended = {row.run for row in study.rows() if row.state != "running"}
    assert left & ended == {f"{chosen.number:04d}"}
    assert chosen.number == best[1 if confirm else 0]


def test_run_that_confirmed_keeps_checkpoints_only_if_its_trial_has_none(tmp_path):
    study = make_study(make_rows(2))
    study.folder = tmp_path
    runs = [
        "trials/0000",
        *(f"confirm/000{number}-{index}" for number in (0, 1) for index in (1, 2)),
    ]
    for run in runs:
        (tmp_path / run / "checkpoints" / "step-00000001").mkdir(parents=True)
    write_json(tmp_path / "confirm" / "0000-1.json", {"value": 0.5})
    write_json(tmp_path / "confirm" / "0001-1.json", {"value": 0.5})
    write_json(tmp_path / "confirm" / "0001-2.json", {"value": 0.5})  # 0000-2 is not over
    for row in study.rows():
        for index in (1, 2):
            confirm._drop_checkpoints(study, row, index)
    left = {"/".join(path.parts[-4:-2]) for path in tmp_path.glob("*/*/checkpoints/step-*")}
    assert left == {"trials/0000", "confirm/0000-2", "confirm/0001-1"}


def test_best_trials_are_those_that_were_trained():
    rows = make_rows(2)
    again = replace(rows[0], number=2, run=None, same_as=0)
    best = best_rows([*rows, again], make_study(rows))
    assert sorted(row.number for row in best) == [0, 1]


@pytest.mark.parametrize(
    ("ways", "best"), [(["max"], [1]), (["min"], [0]), (["max", "min"], [0, 1, 2, 5])]
)
def test_first_of_equal_trials_is_the_best_and_the_front_has_all_of_them(ways, best):
    values = [(0.1, 1.0), (0.9, 3.0), (0.9, 3.0), (0.1, 2.0), (math.inf, 0.0), (0.5, 2.0)]
    (row,) = make_rows(1)
    rows = [
        replace(row, number=number, state="finished", values=found[: len(ways)])
        for number, found in enumerate(values)
    ]
    assert find_best(rows[::-1], [(f"m{at}", way) for at, way in enumerate(ways)])[::-1] == best


def test_trial_that_ends_while_the_test_split_is_measured_keeps_its_checkpoints(tmp_path):
    rows = make_rows(3)
    study = make_study(rows)
    study.folder = tmp_path

    def measure(*_):
        rows = [*make_rows(3), replace(make_rows(1)[0], number=3, run="0003", values=(2.0,))]
        study.rows = lambda: rows
        return Ended({"test": None})

    for name in ("0000", "0001", "0002", "0003"):
        (tmp_path / "trials" / name / "checkpoints" / "step-00000001").mkdir(parents=True)
    worker = SimpleNamespace(
        study=study,
        options=WorkerOptions(keep_best=True),
        stops=SimpleNamespace(reason=""),
        run_job=measure,
    )
    chosen = conclude(worker, None, [])
    left = {path.parts[-3] for path in tmp_path.glob("trials/*/checkpoints/step-*")}
    assert left == {f"{chosen.number:04d}", "0003"}


def test_best_of_several_trials_is_reported_as_biased():
    lines = describe_winner(make_study([]), winner(), 20)
    assert "best of 20 noisy values, so a new run will probably be lower" in lines[1]
    assert "train the best 3 again with other seeds, add --confirm 3" in lines[1]
    assert (
        "best 2 again with other seeds, add --confirm 2"
        in describe_winner(make_study([]), winner(), 2)[1]
    )
    assert len(describe_winner(make_study([]), winner(), 1)) == 1


def test_objective_that_no_seed_changes_is_not_biased():
    study = make_study([], objectives=(("parameters", "min"),))
    smallest = Winner(2, {"task.hidden": 4}, {"parameters": 35.0}, None)
    assert len(describe_winner(study, smallest, 20)) == 1


def test_confirmed_winner_has_mean_and_spread():
    again = Confirmed(2, (0.9, 0.92), 0.91, 0.014)
    other = Confirmed(1, (0.9, math.nan), math.nan, math.nan)
    found = describe_winner(make_study([]), winner(confirmed=(again, other)), 20)
    assert "2 other seeds: val/accuracy 0.91, standard deviation 0.014" in found[1]
    assert "Expect 0.91 of a new run, not the 0.95 of the trial." in found[1]
    single = describe_winner(
        make_study([]), winner(confirmed=(Confirmed(2, (0.97,), 0.97, 0.0),)), 20
    )
    assert single[1] == (
        "Trained again with 1 other seed: val/accuracy 0.97. Expect 0.97 of a new run, not the "
        "0.95 of the trial."
    )


def test_test_split_is_shown_if_it_was_measured():
    assert describe_winner(make_study([]), winner(test={"test/loss": 0.25}), 1)[-1] == (
        "Test split, measured once: test/loss 0.25"
    )


def test_other_seeds_are_those_after_the_seed_of_the_trial(tmp_path):
    """Of a study with seed 1, the first seed from 1 would be the one that selected the trial."""
    study, trained = make_study(make_rows(1)), []
    study.folder = tmp_path
    for folder in ("trials/0000", "confirm"):
        (tmp_path / folder).mkdir(parents=True)
    write_json(tmp_path / "trials" / "0000" / "plan.json", [{"option": "seed", "value": 1}])

    def train(job, _):
        trained.append(job["options"]["seed"])
        return Ended({"metrics": {"val/accuracy": 0.9}})

    worker = SimpleNamespace(
        study=study,
        options=WorkerOptions(confirm=1, confirm_seeds=2),
        stops=SimpleNamespace(reason=""),
        run_job=train,
        print_line=lambda _: None,
    )
    (found,) = confirm.confirm_trials(worker, None)
    assert (trained, found.values) == ([2, 3], (0.9, 0.9))


@pytest.mark.parametrize(("way", "order"), [("min", [1, 0]), ("max", [0, 1])])
def test_failed_confirmation_is_last(way, order, monkeypatch):
    values = {0: 0.9, 1: 0.5, 2: math.nan}
    monkeypatch.setattr(confirm, "_read_value", lambda study, row, index: values[row.number])
    study = make_study([], objectives=(("val/loss", way),))
    rows = [SimpleNamespace(number=number) for number in (2, 0, 1)]
    assert [entry.number for entry in confirm._compare(study, rows, 2)] == [*order, 2]


def test_end_of_a_search_names_the_ended_trials_whose_events_a_tracker_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(finish, "write_report", lambda *_: None)
    study = make_study(make_rows(5))  # the last one is running
    study.folder = tmp_path
    for row in study.rows():
        make_run(tmp_path / "trials" / row.run, delivered={"mlflow": 0 if row.number else ALL})
    for name in ("0000-1", "0000-2"):
        make_run(tmp_path / "confirm" / name, delivered={})
    write_json(tmp_path / "confirm" / "0000-1.json", {"value": 0.9})  # the other one is running
    _, (message,) = write_results(study, None)
    assert "mlflow is missing events of 4 trials: 0001, 0002, 0003, 0000-1. " in message
