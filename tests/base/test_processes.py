import signal
import subprocess
from pathlib import Path

import pytest

from surestep.base import processes


@pytest.mark.parametrize("proc", ["/proc", "/nowhere"], ids=["Linux", "macOS"])
def test_process_is_killed_with_those_that_it_started(monkeypatch, proc):
    monkeypatch.setattr(processes, "_PROC", Path(proc))
    script = "sleep 600 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        below = int(shell.stdout.readline())
        assert below in processes.list_children(shell.pid)
        processes.kill_tree(shell.pid)
        assert shell.stdout.read() == ""  # which `sleep` holds open while it runs
    assert shell.returncode == -signal.SIGKILL
