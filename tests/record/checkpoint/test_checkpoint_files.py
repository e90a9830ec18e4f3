"""What is published has been synced before: files, their folder, then the name in its parent."""

import os

import pytest

from surestep.base.errors import CorruptCheckpointError
from surestep.record.checkpoint.writer import CheckpointFiles
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint


def test_files_and_folders_are_synced_before_and_after_the_name_is_given(tmp_path, monkeypatch):
    synced = []
    own = os.fsync

    def noting(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        own(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    path = save_checkpoint(tmp_path / "checkpoints", tiny.state_of())
    names = [os.path.basename(each).split("-step-")[0] for each in synced]
    assert sorted(names[:3]) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    assert names[3:] == [".tmp", "manifest.json", ".tmp", "checkpoints"]
    assert path.exists()


@pytest.mark.parametrize("bytes_", [b"", b"five5", bytes(2**16)])
def test_what_was_written_is_read_back(tmp_path, bytes_):
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [bytes_[:2], bytes_[2:]])
        written.sync()
        written.verify()
    assert (tmp_path / "a").read_bytes() == bytes_
    assert written.files["a"].bytes == len(bytes_)


@pytest.mark.parametrize("other", [b"", b"fiv", b"fives", b"five55"])
def test_other_bytes_shorter_or_longer_are_damage(tmp_path, other):
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [b"five5"])
        (tmp_path / "a").write_bytes(other)
        written.sync()
        with pytest.raises(CorruptCheckpointError, match="a: it has other bytes than were written"):
            written.verify()


def test_no_file_is_written_over_and_all_are_closed(tmp_path):
    (tmp_path / "b").write_text("there")
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [b"new"])
        with pytest.raises(FileExistsError):
            written.write("b", [b"new"])
        assert written._open
    assert not written._open
    assert (tmp_path / "b").read_text() == "there"


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="macOS takes no such advice")
def test_all_are_on_their_way_to_the_disk_before_one_is_waited_for(tmp_path, monkeypatch):
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


def test_a_system_without_advice_writes_and_reads_back_too(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    with CheckpointFiles(tmp_path) as written:
        written.write("a", [b"five5"])
        written.sync()
        written.verify()
    assert (tmp_path / "a").read_bytes() == b"five5"
