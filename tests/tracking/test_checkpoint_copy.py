"""A checkpoint that is uploaded is complete, although retention deletes it meanwhile."""

import shutil

from surestep.record.checkpoint.manifest import verify
from surestep.tracking import checkpoint_copy
from surestep.tracking.checkpoint_copy import copy_checkpoint, describe_checkpoint
from tests.tracking.test_delivery import train


def test_copy_stays_complete_when_the_checkpoint_is_deleted(tmp_path):
    path = train(tmp_path).last.path
    with copy_checkpoint(path, tmp_path) as copy:
        shutil.rmtree(path)
        assert verify(copy).step == 12
        assert copy.name == path.name
    assert list((tmp_path / "trackers").iterdir()) == []


def test_checkpoint_that_is_deleted_while_it_is_copied_gives_no_copy(tmp_path, monkeypatch):
    path = train(tmp_path).last.path
    link = checkpoint_copy._link

    def link_and_delete(source, target):
        link(source, target)
        shutil.rmtree(path, ignore_errors=True)

    monkeypatch.setattr(checkpoint_copy, "_link", link_and_delete)
    with copy_checkpoint(path, tmp_path) as copy:
        assert copy is None


def test_corrupted_checkpoint_gives_no_copy(tmp_path):
    path = train(tmp_path).last.path
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with copy_checkpoint(path, tmp_path) as copy:
        assert copy is None


def test_reference_to_a_checkpoint_changes_with_its_content(tmp_path):
    runs = [train(tmp_path / name, **{"optim.lr": lr}) for name, lr in [("a", 0.1), ("b", 0.2)]]
    hashes = {describe_checkpoint(run.last.path, 12, {})["manifest_sha256"] for run in runs}
    assert len(hashes) == 2
    assert describe_checkpoint(tmp_path / "missing", 12, {}) is None
