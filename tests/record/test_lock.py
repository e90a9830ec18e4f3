import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from surestep.base.errors import RunError
from surestep.record.lock import RunLock, is_locked
from surestep.record.run_writer import RunWriter

HOLDER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from surestep.record.lock import RunLock
    hold = RunLock(Path(sys.argv[1]))
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    print(child, flush=True)
    time.sleep(600)
    """
)


@pytest.fixture
def holder(tmp_path):
    """A process that has locked the folder, and the pid of its forked child."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        child = int(process.stdout.readline())
        yield process, child
        process.kill()
        os.kill(child, signal.SIGKILL)


def test_lock_that_cannot_be_written_leaves_no_file(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for folder in (tmp_path, tmp_path / "new"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # every file must stay empty
        try:
            with pytest.raises(RunError, match="cannot be a run folder: File too large"):
                RunWriter(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list(tmp_path.iterdir()) == []


def test_second_process_is_rejected_with_the_pid_of_the_lock_owner(tmp_path, holder):
    expected = f"is in use by process {holder[0].pid} on {socket.gethostname()}"
    with pytest.raises(RunError, match=expected):
        RunLock(tmp_path)


def test_lock_of_a_killed_process_is_free_although_its_child_lives(tmp_path, holder):
    process, child = holder
    process.kill()
    process.wait()
    os.kill(child, 0)
    RunLock(tmp_path).release()


def test_second_lock_of_the_same_process_is_rejected(tmp_path):
    hold = RunLock(tmp_path)
    expected = "in use by another session of this process.* choose another folder with --out"
    with pytest.raises(RunError, match=expected):
        RunLock(tmp_path / ".." / tmp_path.name, "--out")
    hold.release()


def test_rejected_second_lock_does_not_release_the_first(tmp_path):
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


def test_released_lock_can_be_taken_again(tmp_path):
    for _ in range(2):
        hold = RunLock(tmp_path)
        hold.release()
        hold.release()


def test_empty_lock_file_still_reports_a_different_process(tmp_path, holder):
    (tmp_path / "lock").write_text("")
    with pytest.raises(RunError, match="is in use by another process"):
        RunLock(tmp_path)


def test_lock_of_another_process_is_seen_without_taking_it(tmp_path, holder):
    assert is_locked(tmp_path)
    holder[0].kill()
    holder[0].wait()
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "nothing")


def test_lock_of_this_process_is_seen_and_kept(tmp_path):
    lock = RunLock(tmp_path)
    assert is_locked(tmp_path)
    code = "import sys; from pathlib import Path; from surestep.record.lock import is_locked\n"
    code += "sys.exit(is_locked(Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == 1
    lock.release()
    assert not is_locked(tmp_path)
