"""Whether a process that another one has named still runs."""

import os
import socket
from pathlib import Path
from uuid import getnode


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
