import os
import subprocess
import sys
from contextlib import suppress

import pytest

import surestep as package
from surestep.cli.main import main
from surestep.record.run import Run
from tests.cli.conftest import RECIPE, environment

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


PRINTING = (
    RECIPE
    + """
class Printing(surestep.Callback):
    def on_step(self, state, result):
        print("step", result.step, flush=True)

callbacks = [Printing()]
"""
)


@pytest.fixture
def closed(monkeypatch):
    """Make stdout or stderr a pipe whose reader is gone; return what to call with its name."""
    opened = []

    def close(name):
        read, write = os.pipe()
        os.close(read)
        opened.append(os.fdopen(write, "w"))
        monkeypatch.setattr(f"sys.{name}", opened[-1])

    yield close
    for stream in opened:
        with suppress(BrokenPipeError):
            stream.close()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("options", [[], ["--json"], ["--logging.progress", "bar"]])
def test_training_does_not_end_with_the_reader_of_its_output(recipe, closed, stream, options):
    path = recipe(PRINTING)
    closed(stream)
    assert main(["train", path, "--run", "r", *options]) == 0
    assert Run("r").status["status"] == "finished"


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "."],
        ["evaluate", "r"],
        ["train", "r.py", "--dry-run"],
        ["plan", "r.py"],
        ["losses"],
    ],
    ids=" ".join,
)
def test_table_whose_reader_is_gone_is_not_an_error(recipe, folder, closed, words, monkeypatch):
    recipe(name="r.py")
    assert main(["train", "r.py", "--run", "r"]) == 0
    closed("stdout")
    assert main(words) == 0
