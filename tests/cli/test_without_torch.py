"""surestep where torch is not installed."""

import json
import subprocess
import sys

import pytest

import surestep
from tests import tiny
from tests.cli.conftest import environment

LINE = (
    "needs torch, which is not installed. Install it: pip install 'surestep[torch]', or a build "
    "for your GPU from https://pytorch.org/get-started/locally/"
)
# Hides torch from every import, runs commands, and imports each public name.
CALL = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout


class WithoutTorch:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] == "torch"
        return None if hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = map(WithoutTorch, sys.meta_path)

import surestep
from surestep.cli.main import main

answers, errors = [], {}
for words in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(words)
    answers.append((code, out.getvalue(), err.getvalue()))
for name in surestep.__all__:
    try:
        getattr(surestep, name)
    except ImportError as error:
        errors[name] = (str(error), error.name)
try:
    from surestep import Task
except ImportError as error:
    errors["from surestep import Task"] = (str(error), error.name)
print(json.dumps((answers, errors)))
"""
WORKING = [
    *(["check", "script.py"], ["check", "--fix", "script.py"], ["explain", "SS101"]),
    *(["docs", "doctor"], ["schedules", "cosine"], ["completion", "bash"], ["--version"]),
    *(
        ["runs", "."],
        ["ckpt", "list", "r"],
        ["ckpt", "verify", "r"],
        ["diagnose", "r"],
        ["plot", "r"],
    ),
    ["mirror", "fetch", "HERE/r", "copy"],
]
FAILING = [
    *(["train", "digits"], ["train", "mine.py"], ["train", "digits", "--nproc", "2"]),
    *(["plan", "mine.py"], ["search", "digits", "--trials", "2"], ["new", "--slurm", "mine.py"]),
    *(["watch", "mine.py"], ["losses"], ["losses", "mse"], ["ckpt", "diff", "r", "r"]),
    *(["ckpt", "export", "r", "a.safetensors"], ["track", "replay", "r", "--to", "tensorboard"]),
]


@pytest.fixture
def answered(folder, recipe):
    """Return what the commands answer, and the errors of the names, in one process."""
    recipe()
    surestep.Trainer(tiny.task(), surestep.Config(epochs=1, batch_size=10), run="r").fit()
    (folder / "script.py").write_text("import torch\n")
    commands = json.dumps([*WORKING, *FAILING]).replace("HERE", str(folder))
    done = subprocess.run(
        [sys.executable, "-c", CALL, commands],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_torch_files_are_read_and_what_trains_says_what_to_install(folder, answered):
    answers, errors = answered
    for words, (code, out, err) in zip(WORKING, answers[: len(WORKING)], strict=True):
        assert code == 0, (words, err)
        assert out, words
    created = {path.name for path in folder.iterdir()} - {".cache"}
    assert created == {"r", "copy", "mine.py", "script.py"}
    for words, answer in zip(FAILING, answers[len(WORKING) :], strict=True):
        assert answer == [2, "", f"ConfigError: surestep {words[0]} {LINE}\n"], words
    assert errors.pop("from surestep import Task") == errors["Task"]
    assert errors.keys() >= {"Trainer", "Session", "losses", "search", "Plan"}
    assert not errors.keys() & {"Config", "Run", "runs", "errors", "Callback", "SurestepError"}
    for name, error in errors.items():
        assert error == [f"surestep.{name} {LINE}", "torch"]
