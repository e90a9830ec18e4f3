"""No memory to read a checkpoint back: one line is told, and nothing good is lost or blamed."""

import pytest

from surestep.base.errors import CheckpointError, CorruptCheckpointError
from surestep.record.checkpoint import manifest
from surestep.record.checkpoint import reader as opened
from surestep.record.checkpoint.discovery import find_newest_valid, list_checkpoints
from tests import tiny

NO_MAP = RuntimeError("unable to mmap 26 bytes from file <x>: Cannot allocate memory (12)")
ERRORS = [MemoryError(), NO_MAP, OSError(12, "Cannot allocate memory")]


def fails(error):
    def raise_it(*_, **__):
        raise error

    return raise_it


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_a_save_that_cannot_be_verified_for_memory_lets_the_run_go_on(
    tmp_path, monkeypatch, capsys, error
):
    said = {"checkpoint": {"every": "2 steps"}, "logging": {"progress": "plain"}}
    tiny.fit(tmp_path, max_steps=2, **said)
    with monkeypatch.context() as patch:
        patch.setattr(opened, "safe_open", fails(error))
        patch.setattr(manifest.hashlib, "file_digest", fails(MemoryError()))
        with pytest.raises(CheckpointError, match="not enough memory") as raised:
            find_newest_valid(tmp_path / "checkpoints")
    assert not isinstance(raised.value, CorruptCheckpointError)
    monkeypatch.setattr("surestep.record.checkpoint.writer.check_readable", fails(error))
    tiny_saved = list_checkpoints(tmp_path / "checkpoints")
    assert [each.name for each in tiny_saved] == ["step-00000002"]
    with pytest.raises(CheckpointError, match="could not be written: there is not enough memory"):
        tiny.fit(tmp_path, max_steps=6, **said)  # the end cannot be saved either
    told = capsys.readouterr().err
    assert "not enough memory" in told
    assert "The run continues, and the next save tries again." in told
    assert list_checkpoints(tmp_path / "checkpoints") == tiny_saved
