import subprocess
import sys

import pytest

import surestep as package
from tests.cli.conftest import environment

WITHOUT_TORCH = """
import sys
from surestep.cli.main import main
code = main(["--help"]) or main(["--version"])
heavy = {"torch", "numpy", "pydantic", "rich", "tyro"} & set(sys.modules)
sys.exit(code or str(heavy) if heavy else code)
"""


def test_help_needs_no_torch():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, env=environment()
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "train RECIPE" in done.stdout


def test_closed_pipe_on_stdout_is_not_an_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "surestep", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=120), errors) == (0, "")


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_names_every_command(surestep, words):
    answer = surestep(*words)
    assert (answer.code, answer.err) == (0, "")
    for command in ("train RECIPE", "plan RECIPE", "evaluate RUN", "digits, chars, spiral"):
        assert command in answer.out


def test_version_is_that_of_the_package(surestep):
    assert surestep("--version") == (0, f"surestep {package.__version__}\n", "")


def test_misspelt_command_is_rejected_with_the_nearest_name(surestep):
    answer = surestep("trian", "digits")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "surestep: no command 'trian'. Did you mean 'train' or 'track'?\n"


def test_incomplete_environment_of_a_launcher_is_explained(surestep, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    answer = surestep("train", "digits")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("ConfigError: This is one of several processes, but its env")
    assert surestep("explain", "SS101").code == 0, "it needs no ranks"


def test_ctrl_c_before_training_exits_with_130(surestep, monkeypatch):
    from surestep.cli import plan

    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "run", interrupted)
    assert surestep("plan", "spiral").code == 130


@pytest.mark.parametrize("command", ["train", "plan"])
def test_command_without_a_recipe_shows_what_to_type(surestep, command):
    answer = surestep(command)
    assert (answer.code, answer.out) == (2, "")
    assert f"Type `surestep {command} digits`" in answer.err


@pytest.mark.parametrize("command", ["train", "plan"])
def test_help_without_a_recipe_shows_the_options_of_all_recipes(surestep, command):
    answer = surestep(command, "--help")
    assert answer.code == 0
    assert f"usage: surestep {command} RECIPE" in answer.out
    assert "--optim.lr FLOAT" in answer.out
    assert "--task." not in answer.out


def test_option_before_the_recipe_is_rejected_with_the_right_order(surestep):
    answer = surestep("train", "--epochs", "5", "digits")
    assert (answer.code, answer.out) == (2, "")
    assert "surestep train digits" in answer.err
