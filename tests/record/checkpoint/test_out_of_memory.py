"""Without memory to verify a checkpoint, one line is printed and no checkpoint is lost."""

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


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_run_continues_if_a_save_cannot_be_verified_for_lack_of_memory(
    tmp_path, monkeypatch, capsys, error
):
    options = {"checkpoint": {"every": "2 steps"}, "logging": {"progress": "plain"}}
    tiny.fit(tmp_path, max_steps=2, **options)
    with monkeypatch.context() as patch:
        patch.setattr(opened, "safe_open", fails(error))
        patch.setattr(manifest.hashlib, "file_digest", fails(MemoryError()))
        with pytest.raises(CheckpointError, match="not enough memory") as raised:
            find_newest_valid(tmp_path / "checkpoints")
    assert not isinstance(raised.value, CorruptCheckpointError)
    monkeypatch.setattr("surestep.record.checkpoint.writer.check_readable", fails(error))
    tiny_saved = list_checkpoints(tmp_path / "checkpoints")
    assert [path.name for path in tiny_saved] == ["step-00000002"]
    with pytest.raises(CheckpointError, match="could not be written: there is not enough memory"):
        tiny.fit(tmp_path, max_steps=6, **options)  # the end cannot be saved either
    output = capsys.readouterr().err
    assert "not enough memory" in output
    assert "The run continues, and the next save tries again." in output
    assert list_checkpoints(tmp_path / "checkpoints") == tiny_saved
