"""Processes can read and delete the checkpoints of one run at once without an OS error."""

import subprocess
import textwrap
import time

import pytest

import surestep
from surestep.cli.main import main
from surestep.record.checkpoint import reader as opened
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.manifest import CheckpointVanishedError
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.checkpoint.retention import RetentionPolicy, delete, prune
from tests import tiny
from tests.warm import warm_python

CHILD = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import torch
    from surestep.record.checkpoint.retention import RetentionPolicy, prune
    from tests.record.checkpoint.on_disk import save_checkpoint
    from tests import tiny

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    state, step = tiny.state_of(steps=1), 100
    while True:
        step += 1
        state.progress = state.progress._replace(step=step)
        state.best.latest = {"val/loss": float(step % 7)}
        state.best.latest_step = step
        save_checkpoint(folder, state)
        prune(folder, RetentionPolicy(1, 1, "val/loss", "min"))
        if step == 101:
            print("ready", flush=True)
    """
)
ROUNDS, MOST_S = 20, 120.0


@pytest.fixture
def run(tmp_path):
    """A run whose checkpoints another process saves and deletes all the time."""
    x = tiny.data()
    options = {"validation": {"metric": "loss"}}
    run = tiny.fit(tmp_path / "r", {"val": x}, **options)
    words = [warm_python(), "-c", CHILD, run.checkpoints]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        yield run
        assert child.poll() is None, "the other process met an error"
        child.kill()


def repeat_alternately(*acts, is_enough=lambda: True):
    """Repeat calls in turn, until each of them finished once at least."""
    done, rounds, end = [0] * len(acts), 0, time.monotonic() + MOST_S
    while rounds < ROUNDS or not min(done) or not is_enough():
        assert time.monotonic() < end, (done, rounds)
        rounds += 1
        for place, act in enumerate(acts):
            try:
                act()
            except (
                CheckpointVanishedError
            ):  # reports that checkpoints vanish faster than they can be read
                continue
            done[place] += 1


def test_run_is_read_while_another_process_deletes_checkpoints(run, capfd):
    model = tiny.model()
    seen = set()
    repeat_alternately(
        lambda: seen.add(run.best.step),
        lambda: seen.update(map(hash, list_checkpoints(run.checkpoints))),
        lambda: run.load_model(model),
        lambda: run.load_model(model, "last"),
        lambda: main(["ckpt", "list", str(run.path)]) == 0 or pytest.fail("not listed"),
        lambda: surestep.Run(run.path).verify(),
        is_enough=lambda: len(seen) > 2,
    )
    assert "Traceback" not in capfd.readouterr().err


def test_two_processes_can_delete_the_same_checkpoints(run):
    def all_but_the_newest():
        delete(list_checkpoints(run.checkpoints)[:-1])

    none_best = RetentionPolicy(1, 0, None, "min")
    repeat_alternately(all_but_the_newest, lambda: prune(run.checkpoints, none_best))


def test_deleting_an_already_deleted_checkpoint_is_not_an_error(tmp_path):
    delete([tmp_path / "step-00000001"])
    assert list(tmp_path.iterdir()) == []


def test_file_of_a_deleted_checkpoint_is_reported_as_vanished(tmp_path):
    session = tiny.prepare(tmp_path / "r")
    next(session.steps())
    found = open_checkpoint(session.save())
    session.close()
    delete([found.path])
    with pytest.raises(CheckpointVanishedError, match="does not exist: it was deleted or moved"):
        found.tensors("model")


def test_file_deleted_while_it_is_opened_is_reported_as_vanished(tmp_path, monkeypatch):
    session = tiny.prepare(tmp_path / "r")
    next(session.steps())
    path = session.save()
    session.close()

    def gone(*_):
        delete([path])
        raise RuntimeError("unable to open file: No such file or directory (2)")

    monkeypatch.setattr(opened, "safe_open", gone)
    with pytest.raises(CheckpointVanishedError, match="does not exist: it was deleted or moved"):
        open_checkpoint(path)
