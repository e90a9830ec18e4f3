"""A full disk gives a sentence and exit code 1, and earlier checkpoints stay valid."""

import os
import shutil
import subprocess

import pytest

from surestep.record.checkpoint.discovery import list_checkpoints
from tests import tiny
from tests.cli.conftest import HEAD
from tests.record.checkpoint.on_disk import load_model

BIG = f"""{HEAD}
config = surestep.Config(epochs=3, batch_size=8, checkpoint=surestep.Checkpoint(keep_last=9))

def task(hidden: int = 4000):
    model = nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, 3))
    return surestep.Task(model=model, loss=nn.CrossEntropyLoss(), train=(x, y))
"""


@pytest.fixture
def small_disk(folder, monkeypatch):
    """A disk of 1 MiB: a real one if mounting is allowed, else simulated."""
    disk = folder / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    may = os.geteuid() == 0 and shutil.which("mount") is not None
    mounted = may and subprocess.run(words, capture_output=True).returncode == 0
    if not mounted:
        fill_up(monkeypatch)
    yield disk
    if mounted:
        subprocess.run(["umount", str(disk)], check=True)


def fill_up(monkeypatch):
    """Make the disk full for the second checkpoint."""
    from surestep.record.checkpoint import writer as write

    own, count = write.write_into, []

    def full(*args):
        count.append(1)
        if len(count) > 4:
            raise OSError(28, "No space left on device")
        return own(*args)

    monkeypatch.setattr(write, "write_into", full)


def test_disk_that_fills_up_ends_the_run_with_a_sentence(surestep, recipe, small_disk):
    run = small_disk / "r"
    answer = surestep("train", recipe(BIG), "--run", run, "--checkpoint.every", "1 epoch")
    assert (answer.code, answer.out) == (1, "")
    last = answer.err.splitlines()[-1]
    assert last.startswith("CheckpointError: ")
    assert "No space left on device" in last
    assert "choose another folder with --run" in last
    model = tiny.nn.Sequential(tiny.nn.Linear(4, 4000), tiny.nn.Linear(4000, 3))
    saved = list_checkpoints(run / "checkpoints")
    assert saved
    for path in saved:
        load_model(path, model)
    assert not list((run / "checkpoints").glob(".tmp-*"))


def test_full_disk_starts_no_run(surestep, recipe, folder, monkeypatch):
    from pathlib import Path

    opened = Path.open

    def full(path, mode="r", *args, **more):
        if ".tmp-" in path.name and "w" in mode:
            raise OSError(28, "No space left on device")
        return opened(path, mode, *args, **more)

    monkeypatch.setattr(Path, "open", full)
    answer = surestep("train", recipe(BIG), "--run", "r")
    assert (answer.code, answer.out) == (1, "")
    assert "RunError: " in answer.err
    assert "No space left on device" in answer.err
    assert not (folder / "r").exists()
