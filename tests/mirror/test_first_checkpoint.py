"""A mirror whose run never copied a checkpoint blocks no run; one that lost them all does."""

import shutil
import threading
from pathlib import Path

import pytest

import surestep
from surestep.base.errors import CheckpointError, RunError
from surestep.mirror import uploader
from surestep.mirror.link import MirrorLink
from surestep.mirror.owner import FILE, Owner, read_owner
from surestep.mirror.push import Pusher
from surestep.mirror.store import Store
from surestep.record.io import write_json
from tests.mirror.runs import check_mirror, files, last_weights, names, train


@pytest.fixture
def address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return f"file://{tmp_path}/mirror"


def train_without_checkpoints(mirror, *, run="one", options=None):
    """Train and copy the records, but no manifest; as if the machine died then."""

    def stop(pusher, path):
        is_recorded = '"checkpoint"' in (pusher.folder / "events.jsonl").read_text()
        pusher._push_records(pusher._changed())
        with lock:
            if is_recorded and not is_over:
                patch.setattr(uploader, "STALLED_S", 0.1)
        pusher.store.write(f"checkpoints/{path.name}/model.safetensors", b"a part of it")
        raise ConnectionError("the machine died")

    # The thread may go on when the run is over, and patch what no test would restore.
    lock, is_over = threading.Lock(), False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pusher, "_push_checkpoint", stop)
        run = train(run, mirror, max_steps=6, **(options or {})).path
        with lock:
            is_over = True
    return run


def test_run_whose_checkpoints_were_not_copied_begins_again_on_an_empty_machine(address, tmp_path):
    plain = train(tmp_path / "plain", max_steps=6)
    run = train_without_checkpoints(address)
    assert any(e["event"] == "checkpoint" for e in surestep.Run(tmp_path / "mirror").events())
    shutil.rmtree(run)
    again = train(address, max_steps=6)
    assert last_weights(again) == last_weights(plain)
    assert check_mirror(address) == names(again.path)
    shutil.rmtree("runs")
    assert last_weights(train(address, max_steps=6)) == last_weights(plain)


def test_local_protection_returns_with_the_first_checkpoint_after_a_fetch(address):
    shutil.rmtree(train_without_checkpoints(address))
    run = train(address, max_steps=6).path
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree("mirror/checkpoints")
    with pytest.raises(CheckpointError, match="had checkpoints, and has none now"):
        train(address, max_steps=6)


@pytest.mark.parametrize("is_older", [False, True])
def test_mirror_that_lost_its_checkpoints_is_not_taken_for_a_new_one(address, is_older):
    run = train("one", address, max_steps=6).path
    shutil.rmtree(run)
    shutil.rmtree("mirror/checkpoints")
    if is_older:  # of a surestep that did not record it
        found = read_owner(Store(address))
        del found["saved"]
        write_json(Path("mirror") / FILE, found)
    with pytest.raises(CheckpointError, match="had checkpoints, and has none now"):
        train(address, max_steps=6)
    with pytest.raises(RunError, match="has another run already"):
        train("two", address, max_steps=6)


def test_checkpoint_that_was_complete_before_the_kill_counts(address):
    """The process was killed after the manifest, before it was recorded in mirror.json."""
    run = train("one", max_steps=6).path
    owner = Owner(Store(address), "a")
    owner.acquire(print)
    Pusher(run, owner.store, MirrorLink("a", address), owner.check).push(is_last=True)
    owner.release()
    assert read_owner(owner.store)["saved"] is False
    fetched = train(address, max_steps=6).path
    assert read_owner(owner.store)["saved"] is True
    shutil.rmtree(fetched)
    shutil.rmtree("mirror/checkpoints")
    with pytest.raises(CheckpointError, match="had checkpoints, and has none now"):
        train(address, max_steps=6)


@pytest.mark.parametrize("options", [{}, {"optim.lr": 0.5}], ids=["same", "corrected"])
def test_run_that_ended_before_its_first_checkpoint_leaves_its_mirror(address, capfd, options):
    class Broken(surestep.Callback):
        def on_step(self, state, result):
            raise ValueError("a bug of the recipe")

    with pytest.raises(ValueError, match="a bug"):
        train("one", address, callbacks=[Broken()])
    left = [
        "incidents/step-00000001/incident.json",
        "tensorboard/events.out",
        "checkpoints/step-00000099/model.safetensors",
    ]
    for name in left:
        Store(address).write(name, b"{}")
    Store(address).write("notes.txt", b"of the user")
    run = train("two", address, **options).path
    assert "has a run that ended before its first checkpoint was copied" in capfd.readouterr().err
    assert files(Path("mirror")) == {**files(run), "notes.txt": b"of the user"}
    with pytest.raises(RunError, match="has another run already"):
        train("one", address)


def test_run_that_is_not_saved_yet_is_not_replaced_while_it_trains(address):
    owner = Owner(Store(address), "other")
    owner.acquire(print)
    with pytest.raises(RunError, match="in use by another session of this process"):
        train("two", address)
    owner.release()


def test_run_that_was_saved_while_another_waited_is_not_replaced(address, monkeypatch):
    """The second process checks the mirror again after it waited for the first."""
    first = Owner(Store(address), "other")
    first.acquire(print)
    first.forget()
    monkeypatch.setattr("surestep.mirror.owner._has_ended", lambda writer: False)

    def end(*_):
        write_json(
            Path("mirror") / FILE,
            {"format": 1, "id": "other", "started": True, "saved": True, "writer": None},
        )

    monkeypatch.setattr("surestep.mirror.owner._wait_for", end)
    with pytest.raises(RunError, match="has another run already"):
        train("two", address)


def test_copy_of_a_mirror_without_a_checkpoint_begins_again(address):
    plain = train("plain", max_steps=6)
    shutil.rmtree(train_without_checkpoints(address))
    shutil.copytree("mirror", "copy")  # with the files of a checkpoint, but no manifest
    assert "step-00000006" in names(Path("copy"))
    run = train("copy", max_steps=6)
    assert last_weights(run) == last_weights(plain)
    shutil.rmtree("copy/checkpoints")
    with pytest.raises(CheckpointError, match="had checkpoints, and has none now"):
        train("copy", max_steps=6)


def test_copy_of_a_mirror_that_lost_its_checkpoints_is_rejected(address):
    train("one", address, max_steps=6)
    shutil.rmtree("mirror/checkpoints")
    shutil.copytree("mirror", "copy")
    with pytest.raises(CheckpointError, match="had checkpoints, and has none now"):
        train("copy", max_steps=6)
