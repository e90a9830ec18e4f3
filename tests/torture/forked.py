"""A child process that is forked from a warm process, and killed.

Forking takes a few milliseconds, importing torch three seconds. The parent must have only one
thread, because a child has only the thread that forked.
"""

import faulthandler
import mmap
import os
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch

Work = Callable[[mmap.mmap, int], None]


def threads() -> int:
    """Count the threads of this process."""
    return len(os.listdir("/proc/self/task"))


class Child:
    """A process that calls `work(shared memory, pipe)` and exits.

    Attributes:
        code: the exit code: 0, 1 for an exception, negative for a signal; None while it runs.
    """

    def __init__(self, work: Work) -> None:
        assert threads() == 1, "only a process of one thread may fork"
        self.shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._read, write = os.pipe()
        self._received = b""
        self.code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(work, self.shared, write)
        os.close(write)
        with suppress(PermissionError):  # the child has done so already
            os.setpgid(self.pid, self.pid)
        self._ended = os.pidfd_open(self.pid)

    def wait_for(self, message: str, timeout_s: float = 600) -> bool:
        """Wait until the child reports this; return False if it exits before."""
        line, until = f"{message}\n".encode(), time.monotonic() + timeout_s
        while line not in self._received:
            left = until - time.monotonic()
            ready, _, _ = select.select([self._read, self._ended], [], [], max(0.0, left))
            if self._ended in ready:
                # Its last message may have arrived after the pipe was read.
                while select.select([self._read], [], [], 0)[0] and self._take():
                    pass
                return line in self._received
            if self._read in ready:
                self._take()
            if not ready:
                os.kill(self.pid, signal.SIGABRT)  # prints where its threads wait
                self.wait()
                raise TimeoutError(
                    f"The child did not reach {message!r}: {self._received[-200:]!r}"
                )
        return True

    def _take(self) -> bytes:
        new = os.read(self._read, 65536)
        self._received += new
        return new

    def finish(self) -> None:
        """Wait until the child exits.

        Raises:
            AssertionError: it ended with an error.
        """
        try:
            if self.wait() != 0:
                raise AssertionError(f"the run ended with {self.code}")
        finally:
            self.close()

    def kill(self) -> None:
        """Kill -9, unless the child has exited."""
        if self.code is None:
            if not self.poll():
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def poll(self) -> bool:
        """Return whether it has exited."""
        ready, _, _ = select.select([self._ended], [], [], 0)
        return bool(ready)

    def wait(self, timeout_s: float = 600) -> int:
        """Wait until it exits; return its code."""
        if self.code is None:
            ready, _, _ = select.select([self._ended], [], [], timeout_s)
            if not ready:
                os.kill(self.pid, signal.SIGABRT)  # prints where its threads wait
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)
            if not ready:
                raise TimeoutError(f"The child ran for more than {timeout_s} s.")
        return self.code

    def close(self) -> None:
        """End the data workers of the child, which outlive it by seconds."""
        self.kill()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.close(self._read)
        os.close(self._ended)


def _be_fresh() -> None:
    """Reseed the generators, because all children inherit the state of the parent."""
    random.seed()
    np.random.seed()
    torch.default_generator.manual_seed(random.getrandbits(63))


def _be_child(work: Work, shared: mmap.mmap, pipe: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        faulthandler.enable()
        _be_fresh()
        work(shared, pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
