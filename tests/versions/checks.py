"""What is run with each release of torch, in a new process of its environment.

A check is a function of a `Place`. It returns nothing, or what the table says instead of "yes", and
raises an error if something is wrong.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.versions.moved import STEPS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LAWS = [
    "tests/laws/test_law_2_resuming.py",
    "tests/laws/test_law_3_plain_torch.py",
    "tests/laws/test_law_5_skipping.py",
    "tests/laws/test_law_7_durable.py",
    "tests/laws/test_law_1_splitting.py",
    "tests/versions/test_checkpoints.py",
]
WATCH = ["tests/doctor/test_private.py", "tests/doctor/watch"]
MISTAKE = """
import torch
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.arange(64) % 2
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print("done")
"""


class CheckError(Exception):
    """Something is wrong with a release of torch; the text has the end of the output."""


class Place(NamedTuple):
    """Where checks run.

    Attributes:
        python: of the environment with the release of torch.
        folder: an empty folder for this release.
        shared: a folder that all releases share.
        end: the time at which a check is stopped; None if there is none.
        row: of the table, from 0: how many releases ran before this one.
    """

    python: Path
    folder: Path
    shared: Path
    end: float | None = None
    row: int = 0

    def run(self, *words: str) -> str:
        """Run Python with arguments; return what it prints.

        Raises:
            CheckError: it failed, or printed a traceback, or one process printed leaks at its end.
                In several, torch's DistributedDataParallel imports triton, which prints them.
            subprocess.TimeoutExpired: the time is over.
        """
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [self.python, *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=None if self.end is None else max(self.end - time.monotonic(), 0.1),
        )
        noise = "Traceback" if {"--nproc", "pytest"} & set(words) else "Traceback|nanobind: leaked"
        if done.returncode != 0 or re.search(noise, done.stderr):
            shown = f"{done.stdout}{done.stderr}".strip()[-2000:]
            raise CheckError(f"{' '.join(words)[:200]}: exit code {done.returncode}\n{shown}")
        return done.stdout

    def run_tests(self, paths: Sequence[str], *more: str) -> None:
        """Run quick tests of this project."""
        options = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "-W", "default", *more]
        places = [str(ROOT / path) for path in paths]
        self.run("-m", "pytest", *options, "--rootdir", str(ROOT), *places)


def run_first_example(place: Place) -> None:
    """Run the first example of the README."""
    (place.folder / "first.py").write_text(_blocks()[0], encoding="utf-8")
    place.run("first.py")


def run_session_example(place: Place) -> None:
    """Run the README's loop after its first example."""
    own_loop = next(block for block in _blocks() if "session.steps()" in block)
    text = _blocks()[0].replace("epochs=20", "epochs=9") + own_loop
    (place.folder / "session.py").write_text(text, encoding="utf-8")
    place.run("session.py")


def run_recipe(place: Place) -> None:
    """Train the README's recipe by the command line, as the README does."""
    _write_recipe(place)
    options = ["--epochs", "3", "--batch-size", "32", "--optim.lr", "3e-3", "--task.hidden", "256"]
    place.run("-m", "surestep", "train", "my_recipe.py", "--run", "recipe", *options)
    place.run("-m", "surestep", "plan", "my_recipe.py", "--all")
    place.run("-m", "surestep", "evaluate", "recipe")


def run_ranks(place: Place) -> None:
    """Train the recipe in two processes; compare with one process."""
    _write_recipe(place)
    for run, processes in (("one", []), ("two", ["--nproc", "2"])):
        place.run("-m", "surestep", "train", "my_recipe.py", "--run", run, *processes)
        place.run("-m", "surestep", "ckpt", "export", f"{run}@last", f"{run}.safetensors")
    place.run("-c", _COMPARE, "one.safetensors", "two.safetensors")


def run_resume(place: Place) -> None:
    """Compare a run that ended after each epoch with one that did not."""
    for run, ends in (("stopped", (4, 8, 12)), ("whole", (12,))):
        for end in ends:
            place.run("-m", "tests.versions.moved", run, str(end))
    folders = [place.folder / run / "checkpoints" / "step-00000012" for run in ("stopped", "whole")]
    for file in folders[1].glob("*.safetensors"):
        if file.read_bytes() != (folders[0] / file.name).read_bytes():
            raise CheckError(f"{file.name} differs after a resume")


def run_watch(place: Place) -> None:
    """Find a planted mistake with `surestep watch`."""
    (place.folder / "script.py").write_text(MISTAKE, encoding="utf-8")
    text = place.run("-m", "surestep", "watch", "--json", "found.json", "script.py")
    found = (place.folder / "found.json").read_text(encoding="utf-8")
    if "SS101" not in found or "done" not in text:
        raise CheckError(f"watch did not find SS101\n{text}{found}")


def run_watch_tests(place: Place) -> None:
    """Run the tests of `surestep watch`."""
    place.run_tests(WATCH)


def run_some_watch_tests(place: Place) -> None:
    """Run the tests of `surestep watch` without the examples of its rules, most of the time."""
    place.run_tests(WATCH, "--ignore", str(ROOT / "tests/doctor/watch/test_rules.py"))


def run_laws(place: Place) -> None:
    """Run the core of the laws."""
    place.run_tests(LAWS)


def run_move(place: Place) -> str | None:
    """Resume the run that the release before has left, for one more epoch; the first begins it."""
    run = place.shared / "moved"
    newest = max((int(path.name[5:]) for path in run.glob("checkpoints/step-*")), default=0)
    before = place.row * STEPS
    if newest != before:
        raise CheckError(f"the newest checkpoint is that of step {newest}, not {before}")
    text = place.run("-m", "tests.versions.moved", str(run), str(before + STEPS))
    if text.split() != [str(before)]:
        raise CheckError(f"the run was not resumed at step {before}: {text}")
    return None if place.row else "-"


CHECKS: dict[str, Callable[[Place], str | None]] = {
    "README's first example": run_first_example,
    "README's own loop": run_session_example,
    "recipe": run_recipe,
    "resume": run_resume,
    "two ranks": run_ranks,
    "watch": run_watch,
    "checkpoint of the row above": run_move,
    "tests of watch": run_watch_tests,
    "laws": run_laws,
}
_COMPARE = """
import sys, torch
from safetensors.torch import load_file
one, two = map(load_file, sys.argv[1:])
torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
"""


def _blocks() -> list[str]:
    """Return the Python examples of the README that are programs."""
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert "surestep.Trainer(" in blocks[0]
    return blocks


def _write_recipe(place: Place) -> None:
    block = next(block for block in _blocks() if block.startswith("# my_recipe.py\n"))
    (place.folder / "my_recipe.py").write_text(block, encoding="utf-8")


def clear(folder: Path) -> Path:
    """Return an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
