"""Checkpoint files, their folder and its parent are synced in this order."""

import os
import shutil
from pathlib import Path

import pytest

from surestep.base.errors import CorruptCheckpointError
from surestep.record.checkpoint.writer import CheckpointFiles
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint


def test_files_and_folders_are_synced_around_the_rename(tmp_path, monkeypatch):
    synced = []
    own = os.fsync

    def noting(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        own(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    path = save_checkpoint(tmp_path / "checkpoints", tiny.state_of())
    names = [os.path.basename(path).split("-step-")[0] for path in synced]
    assert sorted(names[:3]) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    assert names[3:] == [".tmp", "manifest.json", ".tmp", "checkpoints"]
    assert path.exists()


def test_replaced_checkpoint_is_deleted_after_the_new_name_is_synced(tmp_path, monkeypatch):
    """A power cut between the two would otherwise leave neither."""
    state, done, rmtree = tiny.state_of(), [], shutil.rmtree
    path = save_checkpoint(tmp_path / "checkpoints", state)
    before = {file.name: file.read_bytes() for file in path.iterdir()}

    def note_sync(descriptor):
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))

    def note_deletion(folder, **options):
        if folder.exists():
            done.append(("delete", folder))
            assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
        rmtree(folder, **options)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(shutil, "rmtree", note_deletion)
    state.metadata["number"] = 2
    assert save_checkpoint(tmp_path / "checkpoints", state) == path
    assert done[-2] == ("sync", path.parent)
    assert (done[-1][0], done[-1][1].name.startswith(".old-step-")) == ("delete", True)
    assert [kind for kind, _ in done].count("delete") == 1
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("bytes_", [b"", b"five5", bytes(2**16)])
def test_written_bytes_are_read_back(tmp_path, bytes_):
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [bytes_[:2], bytes_[2:]])
        written.sync()
        written.verify()
    assert (tmp_path / "a").read_bytes() == bytes_
    assert written.files["a"].bytes == len(bytes_)


@pytest.mark.parametrize("other", [b"", b"fiv", b"fives", b"five55"])
def test_changed_shorter_or_longer_file_is_corrupt(tmp_path, other):
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [b"five5"])
        (tmp_path / "a").write_bytes(other)
        written.sync()
        with pytest.raises(CorruptCheckpointError, match="a: it has other bytes than were written"):
            written.verify()


def test_existing_file_is_not_overwritten_and_all_files_are_closed(tmp_path):
    (tmp_path / "b").write_text("there")
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [b"new"])
        with pytest.raises(FileExistsError):
            written.write("b", [b"new"])
        assert written._open
    assert not written._open
    assert (tmp_path / "b").read_text() == "there"


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="macOS takes no such advice")
def test_all_files_start_to_flush_before_the_first_wait(tmp_path, monkeypatch):
    called = []
    for name in ("posix_fadvise", "fsync"):
        own = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, own=own: called.append(name) or own(*args)
        )
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [b"one"])
        written.write("b", [b"two"])
        written.sync()
    assert called == ["posix_fadvise"] * 2 + ["fsync"] * 3


def test_files_are_verified_without_posix_fadvise(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [b"five5"])
        written.sync()
        written.verify()
    assert (tmp_path / "a").read_bytes() == b"five5"
