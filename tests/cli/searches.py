"""Searches by the command line, for its tests."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import environment

TRIALS = str(Path(__file__).parents[1] / "tuning" / "recipe.py")
SPACE = '"optim.lr" = "log(1e-3, 1e-1)"\n"task.hidden" = [4, 6, 8]\n'


@pytest.fixture
def space(folder):
    """Write a space; return the options that name it and keep trials the same."""

    def write(text=SPACE):
        (folder / "space.toml").write_text(text)
        return ["--space", "space.toml", "--sampler", "random", "--pruner", "none"]

    return write


@pytest.fixture
def search(surestep, space):
    """Run a search; return the answer, and the trials of its study."""

    def call(*words, recipe=TRIALS, study="study", text=SPACE):
        answer = surestep("search", recipe, *space(text), "--study", study, "--threads", 1, *words)
        return answer, trials(study)

    return call


def trials(study="study"):
    return json.loads(Path(study, "report.json").read_text())["trials"]


def states(found):
    return [trial["state"] for trial in found]


def params_and_values(found):
    return [(trial["params"], trial["values"], trial["intermediate"]) for trial in found]


class Shell:
    """The command of a search in a process that can be interrupted."""

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "surestep", "search", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )

    def wait_for(self, pattern):
        """Wait until a file exists that matches a pattern."""
        self._wait(lambda: any(Path().glob(pattern)), f"there is no {pattern}")

    def wait_for_text(self, file, text):
        """Wait until a file has a text."""
        self._wait(lambda: text in Path(file).read_text(), f"{file} has no {text!r}")

    def _wait(self, holds, problem):
        end = time.monotonic() + 300
        while not holds():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, problem
            time.sleep(0.02)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def finish(self):
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err
