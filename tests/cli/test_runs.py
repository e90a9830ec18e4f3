"""`surestep runs`."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from surestep import Run
from surestep.base.errors import RunError
from surestep.base.text import format_bytes
from surestep.cli.runs import _row
from surestep.record.delete_run import delete_run
from surestep.record.lock import RunLock
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


def test_run_is_running_until_it_is_killed(folder, recipe, surestep, monkeypatch):
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
            monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
            answer = surestep("runs", "--delete", "*")
            assert answer.code == 1
            assert answer.err.startswith("runs/slow is running, and stays.\n")
            with pytest.raises(RunError, match=f"in use by process {process.pid} on "):
                delete_run(Path("runs/slow"), below=Path("runs"))
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGKILL)
    assert json.loads(surestep("runs", "--json").out)[0]["state"] == "killed"


def size_of(folder):
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def test_disk_use_is_listed_and_sorted_by(runs, surestep):
    (runs / "short" / "notes.bin").write_bytes(b"x" * 10_000_000)
    (runs / "deep" / "good" / "outside").symlink_to(runs / "short")  # not followed
    answer = surestep("runs", "--sort", "size", "--json")
    assert names(answer)[0] == "short"
    found = {row["path"]: row["bytes"] for row in json.loads(answer.out)}
    assert found["runs/short"] == size_of(runs / "short")
    assert found["runs/deep/good"] == size_of(runs / "deep" / "good") < 5_000_000
    out = surestep("runs").out
    assert f"runs: 3 runs, {format_bytes(sum(found.values()))}\n" in out
    assert f" {format_bytes(found['runs/short'])} " in out


def test_csv_of_a_run_is_its_history(runs, surestep):
    answer = surestep("runs", "runs/long", "--csv")
    assert answer.code == 0
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    history = Run(runs / "long").history()
    assert list(rows[0]) == list(history)
    assert [int(row["step"]) for row in rows] == history["step"].tolist() == list(range(1, 9))
    assert [float(row["train/loss"]) for row in rows] == history["train/loss"].tolist()
    assert [row["val/loss"] == "" for row in rows] == np.isnan(history["val/loss"]).tolist()


def test_options_that_select_runs_do_not_go_with_the_csv_of_a_run(runs, surestep):
    answer = surestep("runs", "runs/long", "--csv", "--sort", "step")
    assert answer.code == 2
    assert "runs/long is a run, whose steps --csv prints" in answer.err


def test_csv_of_a_folder_lists_its_runs(runs, surestep):
    listed = json.loads(surestep("runs", "--json").out)
    rows = list(csv.DictReader(io.StringIO(surestep("runs", "--csv").out)))
    assert rows == [
        {key: "" if value is None else str(value) for key, value in row.items()} for row in listed
    ]
    assert surestep("runs", "--csv", "--name", "none").out.count("\n") == 1


def test_names_in_a_csv_are_escaped(runs, surestep):
    with (runs / "short" / "events.jsonl").open("a") as file:
        metrics = {"\x1b[31mred": 0.5}
        event = {"event": "evaluation", "time": 1.0, "step": 2, "metrics": metrics}
        file.write(json.dumps(event) + "\n")
    header = surestep("runs", "runs/short", "--csv").out.splitlines()[0]
    assert header.endswith(",\\x1b[31mred")


def delete(surestep, monkeypatch, answer, *words):
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    return surestep("runs", *words)


def test_runs_are_deleted_after_a_question(runs, surestep, monkeypatch):
    listed = delete(surestep, monkeypatch, "yes\n", "--delete", "*o*t*")
    assert listed.code == 0
    assert "runs: 1 run, " in listed.out
    assert "runs/short is deleted" in listed.out
    assert "Delete 1 run, for good? Type yes:" in listed.err
    assert sorted(path.name for path in runs.iterdir()) == ["deep", "long", "notes"]


@pytest.mark.parametrize("answer", ["", "\n", "no\n", "y\n", "YES\n"])
def test_any_answer_but_yes_deletes_nothing(runs, surestep, monkeypatch, answer):
    before = sorted(runs.rglob("*"))
    left = delete(surestep, monkeypatch, answer, "--delete", "*")
    assert (left.code, left.err.splitlines()[-1]) == (1, "Nothing was deleted.")
    assert sorted(runs.rglob("*")) == before


def test_other_filters_select_what_is_deleted(runs, surestep, monkeypatch):
    few = ("--delete", "*", "--recipe", "digits")
    assert "No run in runs is to be deleted." in delete(surestep, monkeypatch, "yes\n", *few).err
    assert (
        delete(surestep, monkeypatch, "yes\n", "--delete", "*", "--name", "good").out.count("is d")
        == 1
    )
    assert names(surestep("runs", "--json")) == ["long", "short"]


def test_run_that_is_in_use_is_not_deleted(runs, surestep, monkeypatch):
    lock = RunLock(runs / "short")
    try:
        answer = delete(surestep, monkeypatch, "yes\n", "--delete", "*")
    finally:
        lock.release()
    assert answer.code == 1
    assert "runs/short is in use by another session" in answer.err
    assert names(surestep("runs", "--json")) == ["short"]


def test_running_run_is_not_offered(runs, surestep, monkeypatch):
    status = json.loads((runs / "short" / "status.json").read_text())
    (runs / "short" / "status.json").write_text(json.dumps({**status, "status": "running"}))
    monkeypatch.setattr("surestep.record.progress.is_locked", lambda path: path.name == "short")
    answer = delete(surestep, monkeypatch, "yes\n", "--delete", "*")
    assert answer.code == 1
    assert "runs/short is running, and stays.\n" in answer.err
    assert "runs: 2 runs, " in answer.out
    assert (runs / "short" / "config.json").exists()


def test_deletion_excludes_other_forms_of_output(runs, surestep):
    answer = surestep("runs", "--delete", "*", "--json")
    assert answer.code == 2
    assert "exclude each other" in answer.err
