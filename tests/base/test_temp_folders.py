import fcntl
import os
import shutil
import signal
import tempfile
from multiprocessing import current_process

import pytest

from surestep.base import temp_folders
from surestep.base.temp_folders import make_temp_folder, remove_stale_folders, use_for_workers


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The system's folder for temporary files, without the one that this process has already."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temp_folders, "_own", {})
    return tmp_path


def fork(act):
    """Return a pipe to a fork that calls a function, and then waits until it is killed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        act()
        os.write(write, b".")
        signal.pause()
    os.close(write)
    with open(read, "rb") as pipe:
        assert pipe.read(1) == b"."
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_folder_of_a_killed_process_is_removed_and_that_of_a_living_one_stays(place):
    dead = fork(lambda: make_temp_folder().__enter__())
    (of_dead,) = place.iterdir()
    alive = fork(lambda: make_temp_folder().__enter__())
    try:
        assert of_dead.is_dir()
        kill(dead)
        with make_temp_folder() as folder:
            assert not of_dead.exists()
            assert len(list(place.iterdir())) == 2
            remove_stale_folders(place)
            assert folder.exists()
            assert len(list(place.iterdir())) == 2
    finally:
        kill(alive)


def test_process_that_ends_leaves_no_folder(place):
    pid = os.fork()
    if pid == 0:
        from multiprocessing.util import _exit_function

        with make_temp_folder() as folder:
            (folder / "file").touch()
        _exit_function()  # as Python calls it at its end
        os._exit(0 if not list(place.iterdir()) else 1)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("kind", ["no lock", "link", "file", "linked lock", "of another user"])
def test_what_is_not_certainly_ours_stays(place, tmp_path_factory, monkeypatch, kind):
    other = tmp_path_factory.mktemp("other")
    (other / ".surestep-lock").touch()
    folder = place / "sure-abc"
    if kind == "link":
        folder.symlink_to(other)
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
    if kind == "linked lock":
        (folder / ".surestep-lock").symlink_to(other / ".surestep-lock")
    if kind == "of another user":
        (folder / ".surestep-lock").touch()
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    remove_stale_folders(place)
    assert os.path.lexists(folder)
    assert (other / ".surestep-lock").exists()


def test_file_system_without_locks_has_folders_too(place, monkeypatch):
    def lockf(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with make_temp_folder() as folder:
        remove_stale_folders(place)
        assert folder.is_dir()


def test_folder_that_the_system_removed_is_made_again(place, monkeypatch):
    config = {**current_process()._config, "tempdir": None}
    monkeypatch.setattr(current_process(), "_config", config)
    use_for_workers()
    removed = config["tempdir"]
    shutil.rmtree(removed)
    with make_temp_folder() as folder:
        assert folder.is_dir()
    use_for_workers()
    assert os.path.isdir(config["tempdir"])
    assert config["tempdir"] != removed
