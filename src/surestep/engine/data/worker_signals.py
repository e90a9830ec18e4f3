"""How a data worker ends: not by signals that are meant for the main process, but always with it.

Signals reach data workers too, because they go to every process of a job. The main process stops
after its step and ends its workers. A worker that died before would take the step with it.
"""

import os
import select
import signal
import threading
import time
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path

GRACE_S = 30.0  # between SIGTERM and SIGKILL: Slurm's, Kubernetes' and torchrun's
POLL_S = 0.5  # after so long a worker has noticed that its main process is gone
_IGNORED = ("SIGINT", "SIGUSR1", "SIGHUP")


def ignore_signals_in_worker() -> None:
    """Let this worker outlive Ctrl-C, SIGUSR1, SIGHUP, SIGTERM by 30 s, and not its main process.

    SIGTERM is also how a worker is ended that hangs, so it does end it, later. A thread waits for
    it: no handler of Python's runs while a worker hangs outside of Python. Processes that the
    worker has started are killed with it.
    """
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # what a process it starts has not
    threading.Thread(target=_end_later, args=(read, os.getppid()), daemon=True).start()


def _end_later(pipe: int, parent: int) -> None:
    """Wait for the end of the main process, or of the grace after SIGTERM; end then.

    A worker that is forked has another parent then. Of one that a server forks, and of one whose
    main process ended before it began, the sentinel tells, which siblings may hold open.
    """
    end, main = float("inf"), parent_process()
    while time.monotonic() < end and os.getppid() == parent and (main is None or main.is_alive()):
        ready, _, _ = select.select([pipe], [], [], min(POLL_S, GRACE_S))
        if ready and signal.SIGTERM in os.read(pipe, 512):
            end = min(end, time.monotonic() + GRACE_S)
    kill_tree(*children(os.getpid()))
    os._exit(0)


def kill_tree(*pids: int) -> None:
    """Kill processes and all that they have started, where the system tells of those."""
    for pid in pids:
        below = children(pid)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        kill_tree(*below)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, where the system tells of them."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            found += map(int, listed.read_text().split())
    return found
