import errno
import fcntl
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from surestep.tuning.lock import FileLock

ADD = """
import sys
from pathlib import Path
from surestep.tuning.lock import FileLock
number = Path(sys.argv[1])
for _ in range(200):
    with FileLock(number.with_name("lock")):
        number.write_text(str(int(number.read_text()) + 1))
"""


def test_threads_take_the_lock_one_after_the_other(tmp_path):
    number = tmp_path / "number"
    number.write_text("0", encoding="utf-8")
    start = threading.Barrier(4)

    def add(_):
        start.wait()
        for _ in range(50):
            with FileLock(tmp_path / "lock"):
                number.write_text(str(int(number.read_text()) + 1), encoding="utf-8")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert number.read_text(encoding="utf-8") == "200"


@pytest.mark.slow("launches several processes")
def test_processes_take_the_lock_one_after_the_other(tmp_path):
    number = tmp_path / "number"
    number.write_text("0", encoding="utf-8")
    command = [sys.executable, "-c", ADD, str(number)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert number.read_text(encoding="utf-8") == "600"


def test_lock_of_a_killed_process_is_free(tmp_path):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom surestep.tuning.lock import FileLock\n"
        "FileLock(Path(sys.argv[1])).acquire()\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False)
    assert (tmp_path / "lock").exists()
    with FileLock(tmp_path / "lock") as lock:
        assert lock.is_supported


def test_lock_is_free_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), FileLock(tmp_path / "lock"):
        1 / 0  # noqa: B018
    with FileLock(tmp_path / "lock"):
        pass
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "none" / "lock").acquire()
    (tmp_path / "none").mkdir()
    with FileLock(tmp_path / "none" / "lock"):
        pass


def test_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", fail)
    with FileLock(tmp_path / "lock") as lock:
        assert not lock.is_supported


def test_link_is_not_followed(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="Too many levels"):
        FileLock(tmp_path / "lock").acquire()
    assert not (tmp_path / "other").exists()
