"""The memory of this process on the host, and what limits it."""

import errno
import sys
from dataclasses import dataclass
from pathlib import Path

from surestep.base.text import format_bytes

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
_HOST = ("DefaultCPUAllocator", "std::bad_alloc", "Cannot allocate memory")  # of torch, C++, Linux
# All that oneDNN says, for any reason; with a limit on what a process allocates, that was it.
# Source: dnnl_common.hpp and dnnl.hpp, `error::wrap_c_api`, whose status torch does not show.
_ONEDNN = (
    "could not create a primitive",
    "could not create a memory object",
    "could not execute a primitive",
)


@dataclass(frozen=True)
class HostMemory:
    """Bytes; None is not known, or no limit.

    Attributes:
        resident: of this process, in memory (RSS).
        peak: the most that was resident.
        address_space: of this process, which RLIMIT_AS limits.
        address_space_limit: RLIMIT_AS, which `ulimit -v` sets.
        container: of all processes of the container, whose limit is `container_limit`.
        container_limit: memory.max of the cgroup.
        available: on the machine, for new processes.
        total: of the machine.
    """

    resident: int | None
    peak: int
    address_space: int | None
    address_space_limit: int | None
    container: int | None
    container_limit: int | None
    available: int | None
    total: int | None

    @property
    def room(self) -> int | None:
        """The bytes that this process can still allocate, by the limits; None is not known."""
        pairs = (
            (self.address_space_limit, self.address_space),
            (self.container_limit, self.container),
            (self.available, 0),
        )
        known = (limit - used for limit, used in pairs if limit is not None and used is not None)
        return min(known, default=None)

    def describe(self) -> str:
        """Return sentences with what this process has, and with the limits that are set."""
        text = f"This process has {format_bytes(self.resident or self.peak)} on the host (RSS)"
        if self.available is not None:
            free, total = format_bytes(self.available), format_bytes(self.total)
            text += f", and {free} of {total} are available"
        text += "."
        if self.address_space_limit is not None:
            text += (
                f" Its address space is limited to {format_bytes(self.address_space_limit)} "
                f"(RLIMIT_AS, ulimit -v), and it uses {format_bytes(self.address_space)}."
            )
        if self.container_limit is not None:
            text += (
                f" Its container or job is limited to {format_bytes(self.container_limit)} "
                f"(memory.max), and uses {format_bytes(self.container)}."
            )
        return text


def peak_resident() -> int:
    """Return the most bytes that this process had on the host."""
    import resource  # which Windows lacks

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # from KiB


def read_host_memory() -> HostMemory:
    """Read the memory of this process; what the system does not show is None."""
    status, machine = _read_sizes(_PROC / "self/status"), _read_sizes(_PROC / "meminfo")
    container_limit, container = _read_container(machine.get("MemTotal", 2**62))
    return HostMemory(
        resident=status.get("VmRSS"),
        peak=peak_resident(),
        address_space=status.get("VmSize"),
        address_space_limit=_read_own_limits()[0],
        container=container,
        container_limit=container_limit,
        available=machine.get("MemAvailable"),
        total=machine.get("MemTotal"),
    )


def ran_out_on_host(error: BaseException) -> bool:
    """Return whether the error of memory that ran out is one of the host's."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(part in text for part in _HOST) or (text in _ONEDNN and limits_allocation())


def limits_allocation() -> bool:
    """Return whether this process may be denied memory: by a limit, or by strict accounting.

    Without them, Linux grants almost any request, and a container's limit kills the process.
    """
    if sys.platform == "win32" or _read_own_limits() != (None, None):
        return True
    return _read_number(_PROC / "sys/vm/overcommit_memory") == 2  # proc_sys_vm(5)


def read_limits() -> tuple[int | None, ...]:
    """Return the bytes that limit this process: its own limits, and that of its container."""
    container_limit, _ = _read_container(_read_sizes(_PROC / "meminfo").get("MemTotal", 2**62))
    return *_read_own_limits(), container_limit


def _read_own_limits() -> tuple[int | None, int | None]:
    """Return the limits of the address space and of the data (ulimit -v, ulimit -d)."""
    if sys.platform == "win32":
        return None, None
    import resource

    space, data = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit, _ in map(resource.getrlimit, (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    )
    return space, data


def _read_sizes(path: Path) -> dict[str, int]:
    """Return the sizes in a file of lines such as "VmRSS:  1024 kB"."""
    lines = map(str.split, _read_lines(path))
    return {words[0][:-1]: int(words[1]) * 1024 for words in lines if words[2:] == ["kB"]}


def _read_container(total: int) -> tuple[int | None, int | None]:
    """Return the smallest limit of the cgroups that this process is in, and what that one uses.

    A container shows its own cgroup as the root of all; a job of Slurm has a cgroup below it.
    """
    found = []
    for line in _read_lines(_PROC / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        root, names = _CGROUP, ("memory.max", "memory.current")
        if controllers == "memory":  # version 1, which writes a number near 2**63 for no limit
            root, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        elif controllers:
            continue
        own = root / path.strip("/")
        for folder in (own, *own.parents[: len(own.parts) - len(root.parts)]):
            limit, used = (_read_number(folder / name) for name in names)
            if limit is not None and limit < total:
                found.append((limit, used))
    return min(found, key=lambda pair: pair[0], default=(None, None))


def _read_number(path: Path) -> int | None:
    """Return the number in a file; None if it has none, as "max" for no limit."""
    return next((int(line) for line in _read_lines(path) if line.isdecimal()), None)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
