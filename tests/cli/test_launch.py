import json
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from surestep.cli.launch import original_argv, strip_launcher_args, strip_nproc
from surestep.cli.train import Options, print_resume_command
from surestep.config.config import iter_options
from surestep.engine.distributed.launcher_env import LaunchInfo
from tests.cli.test_lr_find import RECIPE as TO_MEASURE
from tests.warm import warm_python

PYTHON = sys.executable
TWO = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (
            ["train", "digits", "--nproc", "4", "--epochs", "2"],
            ["train", "digits", "--epochs", "2"],
        ),
        (["train", "--nproc=4", "digits"], ["train", "digits"]),
        (["train", "digits"], ["train", "digits"]),
    ],
)
def test_processes_are_started_without_the_nproc_option(words, kept):
    assert strip_nproc(words) == kept


@pytest.mark.parametrize("first", [[], ["--"], ["--local_rank=1"], ["--local-rank=1", "--"]])
def test_arguments_that_a_launcher_prepends_are_removed(surestep, first):
    assert strip_launcher_args([*first, "train", "a", "--"]) == ["train", "a", "--"]
    assert surestep(*first, "--version").out.startswith("surestep ")


def options_of_train():
    names = [name for name, _ in iter_options()] + [
        each.name.strip("_") for each in fields(Options)
    ]
    return [f"--{name.replace('_', '-')}" for name in names if name != "nproc"]


@pytest.mark.parametrize("behind", ["surestep", "surestep --"])
def test_torchrun_passes_every_option_on(behind):
    parser = get_args_parser()
    for option in options_of_train():
        words = ["train", "digits", "--run-folder" if option == "--run" else option, "x"]
        said = parser.parse_args(["-m", *behind.split(), *words])
        assert said.training_script_args == words
    said = parser.parse_args(["-m", "surestep", "--", "train", "digits", "--run", "r"])
    assert strip_launcher_args(said.training_script_args) == ["train", "digits", "--run", "r"]


def test_run_folder_option_does_not_clash_with_torchrun(surestep, recipe, folder):
    assert surestep("train", recipe(), "--run-folder", "r").code == 0
    assert (folder / "r" / "config.json").is_file()


def test_restarting_launcher_without_a_run_folder_is_rejected(surestep, recipe, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    for name, value in {**TWO, "WORLD_SIZE": "1", "TORCHELASTIC_MAX_RESTARTS": "3"}.items():
        monkeypatch.setenv(name, value)
    answer = surestep("train", recipe())
    assert answer.code == 2
    assert "restarts the processes up to 3 times" in answer.err
    assert "--run-folder runs/NAME" in answer.err


@pytest.mark.parametrize(
    ("launched", "told"),
    [
        (LaunchInfo(), "Resume with: surestep train x\n"),
        (
            LaunchInfo(size=2, launcher="srun"),
            "Resume with: surestep train x (with srun, as before)\n",
        ),
        (LaunchInfo(rank=1, size=2, launcher="srun"), ""),
        (LaunchInfo(size=2, launcher="surestep --nproc"), "Resume with: surestep train x\n"),
    ],
)
def test_one_process_prints_the_command_to_resume(capsys, launched, told):
    print_resume_command("surestep train x", launched)
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("count", "words"),
    [
        ("0", "--nproc 0 is not a number of processes"),
        ("-1", "--nproc"),
        ("two", "--nproc two is not a whole number"),
    ],
)
def test_fewer_than_one_process_is_rejected(surestep, recipe, count, words):
    answer = surestep("train", recipe(), f"--nproc={count}")
    assert answer.code == 2
    assert words in answer.err


def test_nproc_under_a_launcher_is_rejected(surestep, recipe, monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    answer = surestep("train", recipe(), "--nproc", "2")
    assert answer.code == 2
    assert "Leave --nproc out" in answer.err


def test_two_processes_train_one_run_and_only_one_prints(surestep, recipe, tmp_path):
    words = ("train", recipe(), "--nproc", "2", "--run", str(tmp_path / "run"))
    answer = surestep(*words, "--notify", "echo $SURESTEP_STATUS >> told")
    assert answer.code == 0
    assert answer.out.count("Best checkpoint:") == 1
    assert Path("told").read_text() == "finished\n"


@pytest.mark.slow("starts processes twice")
def test_two_processes_find_the_learning_rate_of_one(surestep, recipe):
    words = ("train", recipe(TO_MEASURE), "--optim.lr", "find", "--run")
    answers = [surestep(*words, "r2", "--nproc", "2"), surestep(*words, "r1")]
    assert [answer.code for answer in answers] == [0, 0], answers[0].err
    assert [answer.err.count("Range test with seed 0") for answer in answers] == [1, 1]
    two, one = (json.loads(Path(run, "config.json").read_text()) for run in ("r2", "r1"))
    assert two["lr_find"] == two["config"]["optim.lr"] == pytest.approx(one["lr_find"])
    words = ("lr-find", "mine.py", "--steps", "100", "--seeds", "1", "--json")
    found = [
        surestep(*words, *more) for more in ((), ("--nproc", "2", "--parallel.strategy", "fsdp"))
    ]
    one, two = (json.loads(answer.out) for answer in found)
    falling = [loss for loss in one["curves"][0]["losses"] if loss is not None][:50]
    assert two["curves"][0]["losses"][:50] == pytest.approx(falling, rel=1e-4)
    assert [len(training["losses"]) for training in two["trainings"]] == [1] * len(one["trainings"])
    assert two["lr"] == pytest.approx(one["lr"], rel=0.1)


def test_files_beside_a_recipe_do_not_shadow_libraries_in_processes(
    surestep, recipe, folder, monkeypatch
):
    monkeypatch.setattr(sys, "executable", PYTHON)  # a warm process has imported them before
    for name in ("numpy.py", "datasets.py"):
        (folder / name).write_text("raise RuntimeError('the file of the recipe was imported')")
    answer = surestep("train", recipe(), "--nproc", "2", "--run", "r")
    assert (answer.code, answer.out.count("Best checkpoint:")) == (0, 1), answer.err


def test_error_names_the_rank_that_raised_it(surestep, recipe):
    answer = surestep("train", recipe(), "--nproc", "2", "--parallel.strategy", "single")
    assert answer.code == 2
    assert re.match(r"Rank [01]: ConfigError: parallel\.strategy='single'", answer.err)


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("os.kill(os.getpid(), 9)", 137, "Rank 1 was killed by SIGKILL.\n"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_first_failed_rank_decides_exit_code_and_message(surestep, recipe, body, code, told):
    path = Path(recipe())
    ends = f"import os, sys\nif os.environ.get('RANK') == '1':\n    {body}\n"
    path.write_text(ends + path.read_text(encoding="utf-8"), encoding="utf-8")
    answer = surestep("train", str(path), "--nproc", "2", "--run", "run")
    assert answer.code == code
    assert told in re.sub(r" \(process \d+\)", "", answer.err)
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 75)])
def test_signal_is_forwarded_and_the_processes_save(recipe, folder, number, code):
    words = ["train", recipe(), "--nproc", "2", "--run", "run", "--max-steps", "1000000"]
    with subprocess.Popen(
        [warm_python(), "-m", "surestep", *words], stderr=subprocess.PIPE, text=True
    ) as started:
        lines = iter(started.stderr.readline, "")
        assert any(line.startswith("step ") for line in lines)
        started.send_signal(number)
        told = "".join(lines)
    assert started.returncode == code
    assert "Resume with:" in told
    assert "Traceback" not in told
    assert list((folder / "run" / "checkpoints").iterdir())


def test_original_argv_of_a_rank_includes_nproc(monkeypatch):
    for name, value in {**TWO, "SURESTEP_NPROC": "2"}.items():
        monkeypatch.setenv(name, value)
    assert original_argv(["x.py", "--run", "r"]) == ["x.py", "--run", "r", "--nproc", "2"]
    monkeypatch.delenv("SURESTEP_NPROC")
    assert original_argv(["x.py"]) == ["x.py"]


@pytest.mark.parametrize("command", ["evaluate", "predict", "replay", "search"])
def test_single_process_command_under_a_launcher_is_rejected(surestep, monkeypatch, command):
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    found = surestep(command, "runs/x")
    assert found.code == 2
    assert f"surestep {command} runs in one process, and a launcher started 2." in found.err


def test_resume_with_nproc_starts_processes(surestep, monkeypatch):
    seen = []
    monkeypatch.setattr("surestep.cli.resume.launch", lambda *said: seen.append(said) or 0)
    assert surestep("resume", "runs/x", "--nproc", "2").code == 0
    assert seen == [(2, ["resume", "runs/x", "--nproc", "2"])]


@pytest.mark.parametrize("command", ["train", "resume"])
@pytest.mark.parametrize("again", [["--nproc", "3"], ["--nproc=3"]])
def test_nproc_given_twice_is_rejected(surestep, recipe, command, again):
    answer = surestep(command, recipe(), "--nproc", "2", *again)
    assert (answer.code, "--nproc is given 2 times. Pass it once: --nproc 3." in answer.err) == (
        2,
        True,
    ), answer.err
