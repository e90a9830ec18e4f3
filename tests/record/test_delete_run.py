"""A run is deleted with all that is in it, and nothing else: no link is followed."""

import os
import shutil
from pathlib import Path

import pytest

from surestep.base.errors import RunError
from surestep.record import delete_run as module
from surestep.record.delete_run import delete_run
from surestep.record.lock import RunLock
from tests import tiny


@pytest.fixture
def place(tmp_path):
    """A run in a folder of runs, and a file beside that folder."""
    tiny.fit(tmp_path / "runs" / "a" / "run")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("here")
    return tmp_path


def is_whole(place):
    return (place / "precious" / "file").read_text() == "here"


def test_run_is_deleted_and_the_links_in_it_are_not_followed(place):
    run = place / "runs" / "a" / "run"
    (run / "link").symlink_to(place / "precious")
    (run / "checkpoints" / "link").symlink_to(place / "precious")
    (run / "file").symlink_to(place / "precious" / "file")
    delete_run(run, below=place / "runs")
    assert not run.exists()
    assert run.parent.is_dir()
    assert is_whole(place)


def test_run_behind_a_link_is_not_deleted(place):
    (place / "runs" / "linked").symlink_to(place / "runs" / "a")
    (place / "runs" / "other").symlink_to(place / "runs" / "a" / "run")
    for path in ("linked/run", "other"):
        with pytest.raises(RunError, match="could not be deleted: "):
            delete_run(place / "runs" / path, below=place / "runs")
    assert (place / "runs" / "a" / "run" / "config.json").exists()


def test_folder_of_the_runs_may_be_a_link(place):
    (place / "linked").symlink_to(place / "runs")
    delete_run(place / "linked" / "a" / "run", below=place / "linked")
    assert not (place / "runs" / "a" / "run").exists()


def test_only_what_is_below_the_folder_is_deleted(place):
    run = place / "runs" / "a" / "run"
    around = run / ".." / "run"
    for path, below in ((run, run), (run, place / "precious"), (around, place / "runs")):
        with pytest.raises(RunError, match=r"is not below .*\. Pass the folder that the run is in"):
            delete_run(path, below=below)
    assert run.exists()


def test_folder_that_may_not_be_a_run_is_not_deleted(place):
    other = place / "runs" / "docker"
    other.mkdir()
    (other / "config.json").write_text('{"auths": {}}')
    with pytest.raises(
        RunError, match=r"it lacks recipe.* If it is a run, delete it: rm -r .*docker"
    ):
        delete_run(other, below=place / "runs")
    assert os.listdir(other) == ["config.json"]


def test_run_in_use_is_not_deleted(place):
    run = place / "runs" / "a" / "run"
    before = sorted(run.rglob("*"))
    lock = RunLock(run)
    try:
        with pytest.raises(RunError, match="is in use by another session of this process"):
            delete_run(run, below=place / "runs")
    finally:
        lock.release()
    assert sorted(run.rglob("*")) == before


def test_run_that_may_be_running_where_there_are_no_locks_is_not_deleted(place, monkeypatch):
    run = place / "runs" / "a" / "run"
    monkeypatch.setattr("surestep.record.lock._lock", lambda *_: False)
    status = (run / "status.json").read_text()
    (run / "status.json").write_text(status.replace('"finished"', '"running"'))
    with pytest.raises(RunError, match="may be running: its file system has no locks"):
        delete_run(run, below=place / "runs")
    (run / "status.json").write_text(status)
    delete_run(run, below=place / "runs")
    assert not run.exists()


def test_run_that_is_replaced_by_a_link_is_not_deleted(place, monkeypatch):
    run = place / "runs" / "a" / "run"
    shutil.copytree(run, place / "precious" / "run")
    opened = module._open_run

    def replace(path: Path) -> object:
        found = opened(path)
        run.rename(place / "moved")
        run.symlink_to(place / "precious" / "run")
        return found

    monkeypatch.setattr(module, "_open_run", replace)
    with pytest.raises(RunError, match="could not be deleted"):
        delete_run(run, below=place / "runs")
    assert (place / "precious" / "run" / "config.json").exists()


def test_deletion_that_was_stopped_can_be_repeated(place, monkeypatch):
    run = place / "runs" / "a" / "run"
    removed = []

    def remove(name: str, folder: int) -> None:
        if len(removed) == 3:
            raise KeyboardInterrupt
        removed.append(name)
        remove_file(name, folder)

    remove_file = module._remove
    monkeypatch.setattr(module, "_remove", remove)
    with pytest.raises(KeyboardInterrupt):
        delete_run(run, below=place / "runs")
    monkeypatch.undo()
    assert not {"config.json", "lock"} & set(removed)
    delete_run(run, below=place / "runs")
    assert not run.exists()


def test_error_of_the_file_system_is_explained(place, monkeypatch):
    def remove(name: str, folder: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "_remove", remove)
    with pytest.raises(RunError, match="run could not be deleted: Permission denied"):
        delete_run(place / "runs" / "a" / "run", below=place / "runs")
