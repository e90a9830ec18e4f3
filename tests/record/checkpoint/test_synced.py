"""What is published has been synced before: files, their folder, then the name in its parent."""

import os

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
