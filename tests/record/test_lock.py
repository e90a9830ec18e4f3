import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from surestep.base.errors import RunError
from surestep.record.lock import RunLock
from surestep.record.run_writer import RunWriter

HOLDER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from surestep.record.lock import RunLock
    hold = RunLock(Path(sys.argv[1]))
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
    """
)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder, and the pid of a child that it forked."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        child = int(process.stdout.readline())
        yield process, child
        process.kill()
        os.kill(child, signal.SIGKILL)


def test_a_start_that_the_disk_refuses_leaves_nothing_behind(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for folder in (tmp_path, tmp_path / "new"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file may have a byte
        try:
            with pytest.raises(RunError, match="cannot be a run folder: File too large"):
                RunWriter(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list(tmp_path.iterdir()) == []


def test_a_second_process_is_refused_and_told_who_holds(tmp_path, holder):
    expected = f"is in use by process {holder[0].pid} on {socket.gethostname()}"
    with pytest.raises(RunError, match=expected):
        RunLock(tmp_path)


def test_a_killed_holder_holds_no_more_although_its_child_lives(tmp_path, holder):
    process, child = holder
    process.kill()
    process.wait()
    os.kill(child, 0)
    RunLock(tmp_path).release()


def test_the_same_process_is_refused_too(tmp_path):
    hold = RunLock(tmp_path)
    with pytest.raises(RunError, match="in use by another session of this process"):
        RunLock(tmp_path / ".." / tmp_path.name)
    hold.release()


def test_a_refused_second_holder_does_not_open_the_folder_to_others(tmp_path):
    hold = RunLock(tmp_path)
    with pytest.raises(RunError):
        RunLock(tmp_path)
    code = (
        "import sys, pathlib; from surestep.record.lock import RunLock; "
        "RunLock(pathlib.Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    hold.release()
    assert f"in use by process {os.getpid()}" in done.stderr


def test_released_it_can_be_held_again(tmp_path):
    for _ in range(2):
        hold = RunLock(tmp_path)
        hold.release()
        hold.release()


def test_a_lock_file_that_nobody_can_read_still_names_somebody(tmp_path, holder):
    (tmp_path / "lock").write_text("")
    with pytest.raises(RunError, match="is in use by another process"):
        RunLock(tmp_path)
