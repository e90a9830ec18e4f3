"""Processes by their numbers: whether one still runs, and which others it has started."""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from uuid import getnode

_PROC = Path("/proc")


def describe_machine() -> str:
    """Return what differs if two processes can have the same number: the boot and PID namespace.

    Host names do not: many machines and containers have the same one.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return f"{getnode():x} {socket.gethostname()}"


def has_ended(machine: object, pid: int) -> bool:
    """Return whether a process is known to have ended, by its machine and number."""
    return machine == describe_machine() and not is_running(pid)


def is_running(pid: int) -> bool:
    """Return whether this machine has a process of this number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is of another user
        return True
    return True


def kill_tree(*pids: int) -> None:
    """Kill processes and all that they have started, if the system lists those."""
    for pid in pids:
        below = list_children(pid)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        kill_tree(*below)


def list_children(pid: int) -> list[int]:
    """Return the processes that a process has started, if the system lists them."""
    found: list[int] = []
    if not _PROC.exists():  # macOS has `ps` only
        with suppress(OSError, ValueError):
            command = ["ps", "-A", "-o", "pid=,ppid="]
            rows = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
            found = [
                own for own, parent in (map(int, row.split()) for row in rows) if parent == pid
            ]
        return found
    with suppress(OSError):  # it has ended
        for thread in (_PROC / f"{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found
