"""The ranks of the tests are forked, and their outcomes are recorded."""

import errno
import os
import socket

import pytest
from torch.distributed import TCPStore

from tests.multi_rank.forked import ended
from tests.multi_rank.torchrun import called, check_ended_well, free_port
from tests.warm import warm_python

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from tests.multi_rank.forked import run_forked

def slow_on_rank_0():
    pid = Path(sys.argv[1], "pid")
    if os.environ["RANK"] == "1":
        pid.with_suffix(".tmp").write_text(str(os.getpid()))
        pid.with_suffix(".tmp").rename(pid)
        return
    while not pid.exists() or Path("/proc", pid.read_text()).exists():  # until it was reaped
        time.sleep(0.01)

def stops_on_rank_0():
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGSTOP)

run_forked(Path(sys.argv[1]), {"stopped by its user": slow_on_rank_0, "waits": stops_on_rank_0})
"""


def test_only_a_rank_that_is_stopped_by_a_signal_is_killed(tmp_path):
    check_ended_well(called([warm_python(), "-c", SCRIPT, str(tmp_path)]))
    found = ended(tmp_path, ["stopped by its user", "waits"])
    assert found["stopped by its user"].codes == [0, 0]
    assert found["waits"].codes == [-9, 0]


def test_port_of_a_rank_0_is_given_to_no_other_process_before_it_listens():
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        other.bind(("127.0.0.1", port))
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    assert store.port == port
