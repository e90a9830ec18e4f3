"""`surestep runs`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from surestep.cli.runs import _row
from surestep.record.runs import RunSummary, list_runs, newest_run
from tests.cli.conftest import RECIPE, environment


@pytest.fixture
def runs(folder, recipe, surestep, once):
    """Three finished runs, which every order lists differently, and a folder that is no run."""

    def train():
        name = recipe()
        assert surestep("train", name, "--run", "runs/deep/good", "--optim.lr", 0.1).code == 0
        assert surestep("train", name, "--run", "runs/short", "--max-steps", 2).code == 0
        long = ("--run", "runs/long", "--max-steps", 8, "--optim.lr", 1e-9)
        assert surestep("train", name, *long).code == 0
        (folder / "runs" / "notes").mkdir()

    once(train)
    return folder / "runs"


def names(answer):
    assert answer.code == 0
    return [row["path"].removeprefix("runs/") for row in json.loads(answer.out)]


def test_runs_at_any_depth_are_listed_newest_first(runs, surestep):
    answer = surestep("runs", "--json")
    assert names(answer) == ["long", "short", "deep/good"]
    good = json.loads(answer.out)[2]
    assert (good["state"], good["step"], good["total_steps"]) == ("finished", 6, 6)
    assert (good["recipe"], good["metric"], good["mode"]) == ("mine", "val/loss", "min")
    checkpoints = json.loads(surestep("ckpt", "list", "runs/deep/good", "--json").out)
    best = next(row for row in checkpoints if "best" in row["kept"])
    assert (good["best"], good["best_step"]) == (best["metrics"]["val/loss"], best["step"])


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (("--sort", "name"), ["deep/good", "long", "short"]),
        (("--sort", "step"), ["long", "deep/good", "short"]),
        (("--sort", "best"), ["deep/good", "short", "long"]),
        (("--state", "failed", "finished"), ["long", "short", "deep/good"]),
        (("--state", "running"), []),
        (("--name", "*o*t*"), ["short"]),
        (("--recipe", "m?ne"), ["long", "short", "deep/good"]),
        (("--recipe", "digits"), []),
        (("--metric", "val/loss"), ["long", "short", "deep/good"]),
        (("--metric", "val/accuracy"), []),
    ],
    ids=" ".join,
)
def test_list_is_filtered_and_sorted(runs, surestep, words, listed):
    assert names(surestep("runs", "--json", *words)) == listed


def test_run_was_written_when_its_last_event_was(tmp_path):
    """A running run writes its status at its start."""
    for name, started, last in (("long", 100, 900), ("short", 200, 300)):
        (tmp_path / name).mkdir()
        for file in ("config.json", "status.json", "events.jsonl"):
            (tmp_path / name / file).touch()
            seconds = last if file == "events.jsonl" else started
            os.utime(tmp_path / name / file, (seconds, seconds))
    assert newest_run(tmp_path).name == "long"
    assert [run.written for run in list_runs(tmp_path)] == [900, 300]


def test_table_shows_the_same(runs, surestep):
    short = next(line for line in surestep("runs").out.splitlines() if "short" in line)
    assert short.split()[:7] == ["runs/short", "mine", "finished", "2", "of", "2", "val/loss"]


def test_best_metric_of_0_is_shown():
    row = _row(RunSummary(Path("a"), "finished", metric="val/error", best=0.0, best_step=1200))
    assert row[4:6] == ("val/error 0", "1,200")


def test_unreadable_run_is_a_row_with_its_reason(runs, surestep):
    (runs / "short" / "status.json").write_text("{")
    answer = surestep("runs", "--json", "--sort", "best")
    assert names(answer) == ["deep/good", "long", "short"]  # no best metric: it comes last
    assert json.loads(answer.out)[2]["state"] == "unreadable"
    assert "runs/short" in answer.err
    assert "status.json" in answer.err


def test_empty_folder_and_missing_folder_are_named(folder, surestep):
    (folder / "runs").mkdir()
    assert surestep("runs").err == "runs has no runs yet.\n"
    assert (surestep("runs", "--json").code, surestep("runs", "--json").out) == (0, "[]\n")
    answer = surestep("runs", "other")
    assert answer.code == 1
    assert answer.err.startswith("RunError: There is no folder other.")


def test_run_is_running_until_it_is_killed(folder, recipe, surestep):
    name = recipe(RECIPE.replace("epochs=2", "epochs=200_000"))
    command = [sys.executable, "-m", "surestep", "train", name, "--run", "runs/slow"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                found = json.loads(surestep("runs", "--json").out or "[]")
                if found and found[0]["step"] is not None:
                    break
                time.sleep(0.1)
            assert (found[0]["state"], found[0]["total_steps"]) == ("running", 600_000)
        finally:
            process.send_signal(signal.SIGKILL)
    assert json.loads(surestep("runs", "--json").out)[0]["state"] == "killed"
