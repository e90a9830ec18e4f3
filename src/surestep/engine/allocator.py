"""glibc's memory allocator, which a step on a CPU asks for every activation.

By its defaults glibc gives freed memory back to the kernel, by thresholds that depend on what was
freed before. A step that crosses them gets its activations back from the kernel page by page:
thousands of page faults a step, in some processes and not in others that run the same code.

Source: https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_NEVER_TRIM = 2**31 - 1
# Larger blocks still come from the kernel. Before glibc 2.35 the largest value is 32 MiB.
_MMAP_THRESHOLDS = (2**30, 2**25)


class Allocator(NamedTuple):
    """The allocator of this process.

    Attributes:
        name: "glibc", or the file or system that `malloc` comes from instead.
        settings: environment variables that configure it.
    """

    name: str = "glibc"
    settings: tuple[str, ...] = ()


GLIBC = Allocator()


def read_allocator() -> Allocator:
    """Return which allocator this process has, and how the user has configured it."""
    settings = [name for name in os.environ if name.startswith("MALLOC_")]
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        settings.append("GLIBC_TUNABLES")
    return Allocator(_name(), tuple(sorted(settings)))


def retain_freed_memory() -> bool:
    """Let glibc keep freed memory in this process, for the rest of its life.

    glibc cannot report its thresholds, so they cannot be put back.

    Returns:
        Whether glibc accepted the settings; where it did not, none is changed.
    """
    mallopt = ctypes.CDLL(None).mallopt
    if not any(mallopt(_M_MMAP_THRESHOLD, value) for value in _MMAP_THRESHOLDS):
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _NEVER_TRIM))


def return_free_memory() -> None:
    """Give the memory that is free now back to the kernel, once."""
    ctypes.CDLL(None).malloc_trim(0)


class _Symbol(ctypes.Structure):
    """What `dladdr` tells: Dl_info of <dlfcn.h>."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


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
    address = ctypes.cast(program.malloc, ctypes.c_void_p)
    if not program.dladdr(address, ctypes.byref(symbol)):
        return "not known"
    file = Path(os.fsdecode(symbol.file)).name
    return "glibc" if file.startswith("libc.") or file.startswith("libc-") else file
