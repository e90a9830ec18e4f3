"""Commands import no torch before they need a model."""

import json
import subprocess
import sys

import pytest

import surestep
from tests import tiny
from tests.cli.conftest import RECIPE, environment

# Runs one command after another; prints for each its exit code, its output, and whether torch
# was imported by then.
CALL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from surestep.cli.main import main

answers = []
for words in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code
    answers.append((code, out.getvalue(), err.getvalue(), "torch" in sys.modules))
print(json.dumps(answers))
"""


@pytest.fixture
def place(folder, recipe):
    """A folder with a recipe, and a run with checkpoints."""
    recipe()
    (folder / "run.toml").write_text("[optim]\nlr = -1\n")
    task, config = tiny.task(), surestep.Config(epochs=1, batch_size=10)
    surestep.Trainer(task, config, run=folder / "r").fit()
    return folder


def answers(place, commands):
    """Run commands in one new process, in the folder."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, json.dumps(commands)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


HELP = [
    *(["--help"], ["train", "--help"], ["train", "digits", "--help"], ["train", "mine.py", "-h"]),
    *(["plan", "--help"], ["plan", "digits", "--help"], ["new", "--help"], ["resume", "--help"]),
    ["lr-find", "--help"],
    *(["evaluate", "--help"], ["predict", "--help"], ["replay", "--help"], ["ckpt", "--help"]),
    *(["ckpt", each, "--help"] for each in ("list", "verify", "export", "diff")),
    *(["schedules", "--help"], ["losses", "--help"], ["train", "--help-all"]),
    *(["runs", "--help"], ["check", "--help"], ["explain", "--help"], ["diagnose", "--help"]),
]
READING = [
    *(["--version"], ["ckpt", "list", "r"], ["ckpt", "list", "r", "--json"]),
    *(["ckpt", "verify", "r"], ["ckpt", "verify", "r@best"]),
    *(["schedules"], ["schedules", "cosine"], ["runs", "."]),
    *(["explain"], ["explain", "SS101"], ["explain", "--json"]),
    *(["diagnose", "r"], ["diagnose", "r", "--json"], ["plot", "r"]),
]
WRONG = [
    (["trian", "digits"], "Did you mean 'train' or 'track'?"),
    (["train"], "The recipe is missing."),
    (["train", "digit"], "Did you mean 'digits'?"),
    (["train", "gone.py"], "gone.py does not exist"),
    (["train", "mine.py", "--epoch", "3"], "Did you mean '--epochs'"),
    (["train", "mine.py", "--task.hiden", "3"], "--task.hidden"),
    (["train", "mine.py", "--optim.lr", "-3"], "optim.lr='-3' is not allowed"),
    (["train", "mine.py", "--config", "run.toml"], "optim.lr=-1 is not allowed"),
    (["train", "mine.py", "--config", "gone.toml"], "cannot be read"),
    (["train", "mine.py", "--dry-run", "--overfit", "3"], "cannot be combined"),
    (["train", "mine.py", "--overfit", "0"], "--overfit 0 is not a number of samples"),
    (["train", "mine.py", "--nproc", "none"], "--nproc none is not a whole number"),
    (["plan", "mine.py", "--plot", "a.txt"], "--plot a.txt has the suffix"),
    (["plan", "mine.py", "--local-ranks", "3"], "--local-ranks 3"),
    (["lr-find", "mine.py", "--plot", "a.txt"], "--plot a.txt has the suffix"),
    (["new", "mine.py"], "type surestep new --slurm mine.py"),
    (["resume", "gone"], "There is no run folder gone"),
    (["evaluate", "gone"], "There is no run folder gone"),
    (["evaluate", "r"], "was started from Python"),
    (["predict", "gone"], "There is no run folder gone"),
    (["replay", "gone"], "gone"),
    (["diagnose", "gone"], "There is no run folder gone"),
    (["diagnose"], "There is no run in runs"),
    (["ckpt", "list", "gone"], "There is no run folder gone"),
    (["ckpt", "diff", "gone", "r"], "There is no run folder or checkpoint gone"),
    (["ckpt", "export", "gone", "a.pt"], "There is no run folder or checkpoint gone"),
    (["ckpt", "export", "r", "a.txt"], "a.txt"),
    (["check", "gone.py"], "gone.py does not exist"),
    (["explain", "SS1O1"], "There is no rule 'SS1O1'"),
]


def test_help_and_commands_that_only_read_files_import_no_torch(place):
    commands = [*HELP, *READING]
    for words, (code, out, err, torch) in zip(commands, answers(place, commands), strict=True):
        assert (code, err, torch) == (0, "", False), words
        assert out, words


def test_wrong_command_line_is_rejected_before_torch_is_imported(place):
    """Train at the end: that imports torch, so the commands before it could have."""
    *found, trained = answers(
        place, [*(words for words, _ in WRONG), ["train", "mine.py", "--run", "s"]]
    )
    assert (trained[0], trained[3]) == (0, True), trained
    for (words, message), (code, out, err, torch) in zip(WRONG, found, strict=True):
        assert (code in (1, 2), out, torch) == (True, "", False), (words, err)
        assert message in " ".join(err.split()), words


COLLECTING = """
import gc, sys
from surestep.cli.main import main

assert main(sys.argv[1:]) == 0
print("collecting:", gc.isenabled())
"""


def test_garbage_collector_disabled_by_a_recipe_remains_disabled(folder, recipe):
    recipe("import gc\ngc.disable()\n" + RECIPE)
    for words in (["train", "mine.py", "--run", "r"], ["evaluate", "r"]):
        done = subprocess.run(
            [sys.executable, "-c", COLLECTING, *words],
            capture_output=True,
            text=True,
            env=environment(),
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "collecting: False", words
