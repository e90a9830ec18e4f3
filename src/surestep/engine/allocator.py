"""glibc's memory allocator, which a step on a CPU asks for every activation.

By its defaults glibc gives freed memory back to the kernel, by thresholds that depend on what was
freed before. A step that crosses them gets its activations back from the kernel page by page:
thousands of page faults a step, in some processes and not in others that run the same code.

Memory that stays can also use huge pages of 2 MiB: one entry of the processor's table of
addresses then covers what 512 entries cover with pages of 4 KiB.

Sources: https://man7.org/linux/man-pages/man3/mallopt.3.html,
https://docs.kernel.org/admin-guide/mm/transhuge.html
"""

import ctypes
import math
import mmap
import os
from pathlib import Path
from typing import NamedTuple

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_NEVER_TRIM = -1
# Larger blocks still come from the kernel. Before glibc 2.35 the largest value is 32 MiB.
_MMAP_THRESHOLDS = (2**30, 2**25)
_HUGE_PAGE = 2**21
_BLOCK = 2**30 - 2**16  # the largest kind of block that grows the heap
_MOST_RESERVED = 8 * _BLOCK
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class Allocator(NamedTuple):
    """The allocator of this process.

    Attributes:
        name: "glibc", or the file or system that `malloc` comes from instead.
        settings: environment variables that configure it.
        huge_pages: the kernel gives huge pages to a process that asks for them, and only then.
    """

    name: str = "glibc"
    settings: tuple[str, ...] = ()
    huge_pages: bool = False


GLIBC = Allocator()


def read_allocator() -> Allocator:
    """Return which allocator this process has, and how the user has configured it."""
    settings = [name for name in os.environ if name.startswith("MALLOC_")]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        settings.append("GLIBC_TUNABLES")
    return Allocator(_name(), tuple(sorted(settings)), _has_huge_pages())


def retain_freed_memory() -> bool:
    """Let glibc keep freed memory in this process, for the rest of its life.

    glibc cannot report its thresholds, so they cannot be put back.

    Returns:
        Whether glibc accepted the settings; if it did not, none is changed.
    """
    mallopt = ctypes.CDLL(None).mallopt
    if not any(mallopt(_M_MMAP_THRESHOLD, value) for value in _MMAP_THRESHOLDS):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM))


def reserve_huge_pages() -> None:
    """Let glibc's heap grow on huge pages; call it after `retain_freed_memory`.

    The heap grows by half of the machine's memory, 8 GiB at most, and shrinks again with
    `return_free_memory`. The kernel hands out a page when it is first written to, so that what is
    reserved costs no memory before. Where the kernel declines, the pages are ordinary ones.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    count = min(_MOST_RESERVED, int(machine_memory() // 2)) // _BLOCK
    blocks = [block for _ in range(count) if (block := libc.malloc(_BLOCK))]
    for block in blocks:
        start = -(-block // _HUGE_PAGE) * _HUGE_PAGE
        size = (block + _BLOCK - start) // _HUGE_PAGE * _HUGE_PAGE
        libc.madvise(start, size, mmap.MADV_HUGEPAGE)
    for block in reversed(blocks):
        libc.free(block)


def machine_memory() -> float:
    """Return the bytes of memory that the machine has; infinity if that is not known."""
    if not hasattr(os, "sysconf"):  # Windows
        return math.inf
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def return_free_memory() -> None:
    """Give the memory that is free now back to the kernel, once."""
    ctypes.CDLL(None).malloc_trim(0)


class _Symbol(ctypes.Structure):
    """Dl_info of <dlfcn.h>, which `dladdr` fills."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def _has_huge_pages() -> bool:
    """Return whether the kernel gives huge pages on request only, and a reserve costs no memory.

    It costs memory if the kernel counts what is only reserved, or the process has a limit on it.
    """
    import resource  # which Windows lacks

    limits = [resource.getrlimit(limit)[0] for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    try:
        asks = "[madvise]" in _KERNEL.read_text()
        counts = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:
        return False
    return asks and not counts and all(limit == resource.RLIM_INFINITY for limit in limits)


def _name() -> str:
    """Return "glibc" if its `malloc` is the one that this process calls.

    An allocator of LD_PRELOAD, or one that is linked into Python, comes before glibc's.
    """
    try:
        is_glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # not Linux, or another C library
        is_glibc = False
    if not is_glibc:
        return "that of another C library"
    program, symbol = ctypes.CDLL(None), _Symbol()
    # Not malloc: Debian's Python, at a fixed address, has a stub of it. Allocators have these too.
    for function in (program.calloc, program.posix_memalign):
        if not program.dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(symbol)):
            return "not known"
        file = Path(os.fsdecode(symbol.file)).name
        if not file.startswith(("libc.", "libc-")):
            return file
    return "glibc"
