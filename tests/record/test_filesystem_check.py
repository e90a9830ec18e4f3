import errno
import fcntl
import os
from pathlib import Path

import pytest

import surestep
from surestep.base.errors import RunError
from surestep.record.lock import RunLock, probe_filesystem
from tests import tiny


def failing(real, number, when=lambda *_: True):
    """Return a function that fails like a file system without the operation."""

    def call(*args):
        if when(*args):
            raise OSError(number, os.strerror(number))
        return real(*args)

    return call


@pytest.fixture
def no_locks(monkeypatch):
    monkeypatch.setattr(fcntl, "lockf", failing(fcntl.lockf, errno.ENOLCK))


@pytest.fixture
def no_folder_syncs(monkeypatch):
    is_folder = lambda descriptor: os.path.isdir(f"/proc/self/fd/{descriptor}")  # noqa: E731
    monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.EINVAL, is_folder))


def test_usual_file_system_supports_every_operation(tmp_path):
    assert probe_filesystem(tmp_path, locked=True) == []
    assert list(tmp_path.iterdir()) == []


def test_run_without_file_locks_continues_with_a_notice(tmp_path, no_locks, capsys):
    run = tiny.fit(tmp_path / "run", max_steps=2)
    assert run.status["status"] == "finished"
    notices = [event["text"] for event in run.events() if event["event"] == "notice"]
    assert any("without locks: nothing stops" in text for text in notices)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_not_reported_as_locked(tmp_path, monkeypatch, number):
    monkeypatch.setattr(fcntl, "lockf", failing(fcntl.lockf, number))
    hold = RunLock(tmp_path)
    assert not hold.locked
    hold.release()


def test_lock_that_fails_for_a_different_reason_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "lockf", failing(fcntl.lockf, errno.EIO))
    with pytest.raises(RunError, match="cannot be a run folder: Input/output error"):
        surestep.prepare(tiny.task(), tiny.config(), run=tmp_path / "run")


def test_run_without_folder_syncs_continues_with_a_notice(tmp_path, no_folder_syncs):
    run = tiny.fit(tmp_path / "run", max_steps=2)
    assert run.last.step == 2
    notices = [event["text"] for event in run.events() if event["event"] == "notice"]
    assert any("does not sync folders" in text for text in notices)


def test_file_that_cannot_be_synced_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(os.fsync, errno.EINVAL))
    with pytest.raises(RunError, match="could not be written: Invalid argument"):
        tiny.fit(tmp_path / "run", max_steps=2)


def test_run_does_not_start_without_folder_renames(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "rename", failing(Path.rename, errno.EPERM))
    with pytest.raises(RunError, match=r"cannot rename what is in it .* Choose another folder"):
        tiny.fit(tmp_path / "run", max_steps=2)
    assert not (tmp_path / "run").exists()
