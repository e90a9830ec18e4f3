"""`surestep tune`: its tables, its files and its messages, with a measurer without processes."""

import json
import re
import tomllib

import pytest
import torch

from surestep.engine.distributed.launcher_env import NPROC_VARIABLE
from surestep.engine.distributed.stop_signals import CTRL_C
from surestep.engine.plan.system import read_system
from surestep.record.run import Run
from surestep.reports.describe_run import describe_run
from surestep.reports.tuned import describe_tuned
from surestep.tuning.speed import tune
from surestep.tuning.speed.machine import read_machine, report_other_machine
from surestep.tuning.speed.measuring_process import MeasuringFailed
from surestep.tuning.speed.table import COLUMNS
from tests.tuning.speed.fakes import FakeMeasurer

MACHINE = {"device": "cpu (AVX2)", "cpus": 2, "torch": "2.13.0"}
WORKERS = [{"data.num_workers": 1}, {"data.num_workers": 2}]


@pytest.fixture
def tuned(surestep, recipe, folder, monkeypatch):
    """Return a function that tunes a recipe of a fake speed."""

    def run(*words, fake=FakeMeasurer, factors=None, found=None, **more):
        every = {"workers": WORKERS, "bf16": [{"precision": "bf16"}], **(found or {})}
        chosen = words[words.index("--knobs") + 1] if "--knobs" in words else "workers,bf16"
        speeds = {"data.num_workers=2": 0.5, "precision=bf16": 0.8, **(factors or {})}
        made = fake(speeds, every, **{"run": {"machine": MACHINE}, **more})
        monkeypatch.setattr(tune, "ProcessMeasurer", lambda *args: made)
        typed = words if "--knobs" in words else (*words, "--knobs", chosen)
        return surestep("tune", recipe(), *typed)

    return run


def read(folder):
    return json.loads((folder / "tune.json").read_text())


def test_tables_files_and_the_next_command(tuned, folder):
    answer = tuned("--out", "t", "--max-steps", "1000", "--task.hidden", "4")
    assert answer.code == 0, answer.err
    for text in (
        "Knobs that keep the numbers",
        "data.num_workers=2",
        "bitwise the same in 37 steps",
        "Knobs that change the numbers",
        "proposed: it changes the numbers: --allow numbers takes it",
        "A step waits for 50% of its time.",
        "Report: t/report.html",
        "Next: surestep train mine.py --config t/tuned.toml",
    ):
        assert text in answer.out, answer.out
    written = tomllib.loads((folder / "t/tuned.toml").read_text())
    about = written.pop("tuned")
    assert written == {"data": {"num_workers": 2}, "max_steps": 1000, "task": {"hidden": 4}}
    assert {name: about[name] for name in MACHINE} == MACHINE
    assert about["recipe"] == "mine"
    assert '# precision = "bf16"' in (folder / "t/tuned.toml").read_text()
    assert "Speed of mine" in (folder / "t/report.html").read_text()


def test_report_of_a_run_shows_the_rungs_that_chose_its_options(tuned, surestep, recipe, folder):
    assert tuned("--out", "t", "--allow", "numbers", "--knobs", "bf16").code == 0
    words = ("--config", "t/tuned.toml", "--max-steps", "2", "--run", "r")
    assert surestep("train", recipe(), *words).code == 0
    shown = describe_run(Run(folder / "r"), "r")["tuned"]
    assert shown["columns"] == list(COLUMNS)
    assert [row[0] for row in shown["rows"]] == ["as it is", "precision=bf16"]
    assert f"folder {folder / 't'}" in shown["about"]
    assert surestep("train", recipe(), "--max-steps", "2", "--run", "plain").code == 0
    assert describe_run(Run(folder / "plain"), "plain")["tuned"] is None


@pytest.mark.parametrize("table", [3, [], [["a"]], [["a"], ["b", "c"]], [["a"], 3]])
def test_table_of_rungs_that_is_not_one_is_not_shown(table):
    assert describe_tuned({"tuned": {"rungs": table}}) is None


def test_what_changes_the_numbers_is_taken_if_that_is_allowed(tuned, folder):
    assert tuned("--out", "t", "--allow", "numbers").code == 0
    assert tomllib.loads((folder / "t/tuned.toml").read_text())["precision"] == "bf16"


def test_json_is_all_that_is_printed(tuned, folder):
    answer = tuned("--json", "--out", "t")
    printed = json.loads(answer.out)
    assert printed.pop("folder") == "t"
    assert {**printed, "version": read(folder / "t")["version"]} == read(folder / "t")
    assert [rung["outcome"] for rung in printed["rungs"]] == ["not taken", "kept", "proposed"]


def test_folder_is_made_if_none_is_named(tuned, folder):
    assert tuned().code == 0
    (made,) = (folder / "tunes").iterdir()
    assert made.name.startswith("mine-2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "--minutes 0 is not a time to measure in. Pass 2 or more"),
        (["--minutes", "nan"], "--minutes nan is not a time"),
        (["--minutes", "soon"], "--minutes soon is not a number. Write --minutes 10.0."),
        (["--knobs", "worker"], "There is no knob 'worker'. Did you mean 'workers'?"),
        (["--nproc", "0"], "--nproc 0 is not a number of processes. Use 1 or more."),
        (["--run", "r"], "A tuning makes no run folder: use --out FOLDER."),
        (["--allow", "all"], "--allow has no choice 'all'. Use --allow numbers."),
        (["--out", "s3://bucket/t"], "s3://bucket/t"),
    ],
)
def test_wrong_option_has_an_error(surestep, recipe, folder, words, message):
    answer = surestep("tune", recipe(), *words)
    assert answer.code in (1, 2)
    assert message in answer.err
    assert not (folder / "tunes").exists()


def test_folder_of_another_tuning_is_not_changed(tuned, folder):
    assert tuned("--out", "t").code == 0
    before = (folder / "t/tune.json").read_bytes()
    answer = tuned("--out", "t")
    assert (answer.code, (folder / "t/tune.json").read_bytes()) == (1, before)
    assert "t has a tuning already. Choose another folder with --out" in answer.err


def test_recipe_that_cannot_be_planned_ends_with_its_error_and_leaves_no_folder(tuned, folder):
    class Failing(FakeMeasurer):
        def describe(self, options, knobs):
            raise MeasuringFailed("there is no data", "TaskError")

    answer = tuned(fake=Failing)
    assert answer.code == 1
    assert "TaskError: there is no data" in answer.err
    assert not (folder / "tunes").exists()


@pytest.mark.parametrize("moment", [1, 40, 100])
def test_ctrl_c_leaves_what_is_known(tuned, folder, moment):
    class Interrupted(FakeMeasurer):
        windows = 0

        def step_s(self, options):
            self.windows += 1
            if self.windows == moment:
                raise KeyboardInterrupt
            return super().step_s(options)

    answer = tuned("--out", "t", fake=Interrupted)
    assert answer.code == 130
    assert f"Stopped by {CTRL_C}. This is what is known so far." in answer.out
    found = read(folder / "t")
    assert found["stopped"] == CTRL_C
    assert len(found["rungs"]) == {1: 0, 40: 0, 100: 2}[moment]
    assert "[tuned]" in (folder / "t/tuned.toml").read_text()


def test_busy_machine_is_reported(tuned, monkeypatch):
    monkeypatch.setattr(tune.os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    monkeypatch.setattr(tune.os, "cpu_count", lambda: 2)
    assert "The machine is busy: 4.5 other processes per core want to run." in tuned().out


def test_options_of_a_different_machine_are_used_and_reported(
    surestep, recipe, folder, monkeypatch, capfd
):
    def plan(**changes):
        lines = [f"{name} = {json.dumps(v)}" for name, v in {**here, **changes}.items()]
        (folder / "tuned.toml").write_text("\n".join(["max_steps = 2", "[tuned]", *lines]))
        return surestep("plan", recipe(), "--config", "tuned.toml", "--json")

    here = read_machine(read_system(), torch.device("cpu"))
    same = plan()
    assert (same.code, same.err) == (0, "")
    other = plan(cpus=999)
    assert (other.code, other.out) == (0, same.out)
    assert re.match("tuned.toml was measured on cpu .*, 999 cores, torch", other.err)
    monkeypatch.setenv(NPROC_VARIABLE, "2")  # the process that starts the ranks prints it
    for name, value in {
        "RANK": 0,
        "WORLD_SIZE": 2,
        "MASTER_PORT": 1,
        "MASTER_ADDR": "host",
    }.items():
        monkeypatch.setenv(name, str(value))
    report_other_machine({**here, "cpus": 999}, "tuned.toml")
    assert capfd.readouterr().err == ""


def test_table_of_a_machine_that_is_not_one_is_rejected(surestep, recipe, folder):
    (folder / "tuned.toml").write_text("tuned = 3\n")
    answer = surestep("plan", recipe(), "--config", "tuned.toml")
    assert answer.code == 2
    assert "tuned=3 is not a table" in answer.err
