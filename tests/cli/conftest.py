"""A terminal in a temporary folder with a recipe."""

import os
import re
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

import pytest

from surestep.cli.main import main
from tests.read_modules import forget_modules

HEAD = """
import torch
from torch import nn
import surestep

x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
y = x[:, :3].argmax(dim=1)
"""

RECIPE = (
    HEAD
    + '''
config = surestep.Config(
    epochs=2,
    batch_size=8,
    optim=surestep.Optim(lr=0.01),
    schedule=surestep.Schedule(warmup="2 steps"),
)

def accuracy(outputs, targets):
    return (outputs.argmax(dim=1) == targets).float().mean()

def task(hidden: int = 8, act: str = "tanh", bias: bool = True, depth: int | None = 1):
    """Tell three classes apart.

    Args:
        hidden: how wide the one layer is.
        act: tanh or relu.
    """
    acts = {"tanh": nn.Tanh, "relu": nn.ReLU}
    return surestep.Task(
        model=lambda: nn.Sequential(nn.Linear(4, hidden, bias), acts[act](), nn.Linear(hidden, 3)),
        loss=nn.CrossEntropyLoss(),
        train=(x[:24], y[:24]),
        val=(x[24:32], y[24:32]),
        test=(x[32:], y[32:]),
        metrics={"accuracy": accuracy},
    )
'''
)


STREAM = RECIPE.replace("epochs=2", "max_steps=6").replace(
    "train=(x[:24], y[:24])", "train=lambda: zip(x[:24], y[:24])"
)


BAD = RECIPE.replace("y = x", "x[20] = x[20] * 0 + torch.nan\ny = x")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run that stopped at a bad sample, and its recipe."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "spoiled_recipe.py").write_text(BAD)
    path = list(sys.path)
    with chdir(folder):
        assert main(["train", "spoiled_recipe.py", "--run", "r", "--data.shuffle", "False"]) == 1
    sys.path[:] = path
    del sys.modules["spoiled_recipe"]  # that of another test module is another file
    return folder


class Answer(NamedTuple):
    """The exit code and the output of a command, without the frames of tables."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a temporary folder, on a wide terminal; forget the recipes that were read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / ".cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    with forget_modules(tmp_path):
        yield tmp_path


@pytest.fixture
def surestep(capfd):
    """Run a command."""

    def call(*words):
        capfd.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as left:
            code = left.code
        printed = capfd.readouterr()
        return Answer(code, plain(printed.out), plain(printed.err))

    return call


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder of the first test that calls `once`, and a copy of it."""
    return {"copy": tmp_path_factory.mktemp("first") / "copy"}


@pytest.fixture
def once(folder, first):
    """Call a function in the first test of a file; copy what it leaves in the folder for others.

    A run has the path of its recipe.
    """

    def call(function):
        if "folder" not in first:
            function()
            shutil.copytree(folder, first["copy"])
            first["folder"] = folder
            return
        shutil.copytree(first["copy"], folder, dirs_exist_ok=True)
        for path in folder.rglob("config.json"):
            path.write_text(path.read_text().replace(f"{first['folder']}/", f"{folder}/"))

    return call


@pytest.fixture
def recipe(folder):
    """Write a recipe file; return its name."""

    def write(text=RECIPE, name="mine.py"):
        (folder / name).write_text(text)
        return name

    return write


def plain(text):
    """Remove the frames of tables and the padding."""
    return re.sub(r"[ \t]+", " ", re.sub(r"[─-╿]", " ", text))


def environment():
    """Return the environment of a child process, with one thread for torch."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def files(folder: Path):
    """List the files in a folder, without what Python compiles, where it may."""
    found = (path.relative_to(folder) for path in folder.rglob("*"))
    return sorted(str(path) for path in found if "__pycache__" not in path.parts)
