"""A table of bytes in memory that this process and its data workers share.

The memory has no name: workers get it when they are forked, or as a file descriptor when they are
spawned, and the system frees it when the last of them has ended, however it ends. Entries are
appended and never change. So a process copies an entry without a lock, and takes the lock, which
the system releases if a process is killed, only to read which entries are new, and to append one.
"""

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from struct import Struct
from typing import Any
from weakref import WeakMethod

KEY = 16  # bytes of a key
_HEAD = Struct("<QQ")  # where the entries end, and whether one did not fit
_ENTRY = Struct(f"<{KEY}sQ")  # a key, and the bytes that follow


class SharedStore:
    """A table of bytes by key, in shared memory of a fixed size.

    Args:
        size: bytes; memory is used as entries are added.
        descriptor: of the memory of a store in another process; None makes the memory.

    Raises:
        OSError: the system does not give the memory.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._descriptor = _make_memory(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self._descriptor, size)
        self._view = memoryview(self._memory)
        self._entries: dict[bytes, slice] = {}  # as far as this process has read
        self._read_to = _HEAD.size
        self._threads = threading.Lock()  # the system's lock does not exclude them
        if descriptor is None:
            _HEAD.pack_into(self._memory, 0, _HEAD.size, False)
        renew = WeakMethod(self._renew_lock)
        os.register_at_fork(after_in_child=lambda: (method := renew()) and method())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Give the memory to a process that is spawned now."""
        return _attach, (self.size, DupFd(self._descriptor))

    def __len__(self) -> int:
        """Return how many entries there are."""
        with self._locked():
            return len(self._entries)

    @property
    def used(self) -> int:
        """The bytes that are used."""
        end: int = _HEAD.unpack_from(self._memory, 0)[0]
        return end

    @property
    def is_full(self) -> bool:
        """Whether an entry did not fit."""
        return bool(_HEAD.unpack_from(self._memory, 0)[1])

    def find(self, key: bytes) -> memoryview | None:
        """Return the bytes of a key; None if there are none."""
        where = self._entries.get(key)
        if where is None:
            with self._locked():
                where = self._entries.get(key)
        return None if where is None else self._view[where]

    def add(self, key: bytes, content: bytes) -> None:
        """Add an entry, unless there is one of this key, or it does not fit."""
        with self._locked() as end:
            if key in self._entries:
                return
            start = end + _ENTRY.size
            stop = start + len(content)
            if stop > self.size:
                _HEAD.pack_into(self._memory, 0, end, True)
                return
            self._view[start:stop] = content
            _ENTRY.pack_into(self._memory, end, key, len(content))
            # Last, so that a process which is killed before leaves no part of an entry.
            _HEAD.pack_into(self._memory, 0, stop, self.is_full)

    def _renew_lock(self) -> None:
        """Replace the lock of threads in a forked process, where their holder does not exist."""
        self._threads = threading.Lock()

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Exclude other processes, and read what they have added; give where the entries end."""
        with self._threads:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                end: int = _HEAD.unpack_from(self._memory, 0)[0]
                self._read_entries(end)
                yield end
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _read_entries(self, end: int) -> None:
        while self._read_to < end:
            key, size = _ENTRY.unpack_from(self._memory, self._read_to)
            start = self._read_to + _ENTRY.size
            self._entries[key] = slice(start, start + size)
            self._read_to = start + size

    def __del__(self) -> None:
        """Close the descriptor; the memory is freed when no process has it."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _make_memory(size: int) -> int:
    """Return a descriptor of memory without a name; elsewhere than on Linux, of a removed file."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("surestep")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _attach(size: int, descriptor: Any) -> SharedStore:
    return SharedStore(size, descriptor.detach())
