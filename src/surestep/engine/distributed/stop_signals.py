"""Signals that stop a run: what the innermost open `StopSignals` of the process does with them.

A handler of the host program is never replaced, nor a signal that it ignores handled. The handlers
are restored when the last `StopSignals` of the process is closed.
"""

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

from surestep.base.errors import ConfigError, Preempted
from surestep.base.exit_codes import STOPPED
from surestep.base.noted_signals import NotedSignals, is_default
from surestep.engine.distributed.launcher_env import BY_NPROC, read_launched

CTRL_C = "Ctrl-C"
_OTHERS = ("SIGTERM", "SIGUSR1", "SIGHUP")
SIGNALS = (CTRL_C, *_OTHERS)
_NAMES = {
    signal.SIGINT: CTRL_C,
    **{getattr(signal, name): name for name in _OTHERS if hasattr(signal, name)},
}
_POLL_S = 0.5  # between two checks that the launcher is alive
_AT_MOST_S = 30.0  # for a rank to end without its launcher; torchrun too kills ranks after 30 s


class StopSignals:
    """A part of the program, and what it does when a signal arrives; a context manager.

    Only the first signal counts, and each Ctrl-C. Outside of the main thread it does nothing, since
    Python handles no signals there.

    Attributes:
        act: called with the name of a signal, such as "SIGTERM".
        received: the names of the signals that have arrived.
        finishes_step: ends by itself after the step, however long that and the save take.

    Args:
        act: what to do; it may raise an error.
        finishes_step: see above.
    """

    def __init__(self, act: Callable[[str], object], *, finishes_step: bool = False) -> None:
        self.act = act
        self.finishes_step = finishes_step
        self.received: list[str] = []

    def open(self) -> Self:
        """Act on signals from now on; return self."""
        if threading.current_thread() is threading.main_thread():
            _process.enter(self)
        return self

    def close(self) -> None:
        """Leave signals to what acted on them before; a second call does nothing."""
        _process.leave(self)

    def close_after(self, error: BaseException) -> None:
        """Close after an error; raise that for a signal instead, which may be its cause."""
        self.close()
        if isinstance(error, Exception):
            self.check()

    def check(self) -> None:
        """Act again on a signal that arrived, in case that other code caught the error of `act`."""
        if self.received:
            self.act(self.received[0])

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Process:
    """The open `StopSignals` of this process, and the handlers that they replaced."""

    def __init__(self) -> None:
        self.open: list[StopSignals] = []
        self._pid = 0  # a process that is forked from this one does not act as it does
        self._replaced: dict[signal.Signals, Any] = {}
        self._is_over = threading.Event()

    def enter(self, one: StopSignals) -> None:
        if self._pid != os.getpid():
            self._pid, self.open = os.getpid(), []
        if not self.open:
            self._is_over = _watch_launcher()
        self.open.append(one)
        for number in _NAMES:
            handler = signal.getsignal(number)
            if isinstance(handler, NotedSignals):
                self._replaced[number] = handler.replaced[number]
            elif is_default(number):
                self._replaced[number] = handler
            else:
                continue
            signal.signal(number, self._handle)

    def leave(self, one: StopSignals) -> None:
        if self._pid != os.getpid() or one not in self.open:
            return
        self.open.remove(one)
        if not self.open:
            self._is_over.set()
            if threading.current_thread() is threading.main_thread():
                self._restore()

    def _restore(self) -> None:
        for number, handler in self._replaced.items():
            if signal.getsignal(number) == self._handle:  # otherwise it was replaced since
                signal.signal(number, handler)
        self._replaced = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._pid != os.getpid() or not self.open:  # forked, or closed by another thread
            self._restore()
            os.kill(os.getpid(), number)
            return
        name = _NAMES[signal.Signals(number)]
        if name == "SIGHUP":
            _detach_terminal()
        for one in self.open:
            one.received.append(name)
        innermost = self.open[-1]
        if name == CTRL_C or len(innermost.received) == 1:  # launchers send several
            innermost.act(name)


_process = _Process()


def raise_stop(text: str, name: str) -> None:
    """Raise KeyboardInterrupt for Ctrl-C, and Preempted for another signal.

    Args:
        text: the message, with {name}.
        name: of the signal.
    """
    if name == CTRL_C:
        raise KeyboardInterrupt
    raise Preempted(text.format(name=name), reason=name)


def check_stop() -> None:
    """Act again on a signal that arrived, in case that other code caught the error it raised."""
    for one in reversed(_process.open):
        one.check()


@contextmanager
def defer_stop() -> Iterator[None]:
    """Note a signal, and act on it after the block: for imports.

    An import that is interrupted can lose the error, or leave a module that is half imported.
    """
    if not _process.open:
        yield
        return
    with StopSignals(lambda name: None) as deferred:
        yield
    if deferred.received:
        check_stop()


def has_agent() -> bool:
    """Return whether the launcher of this process sends signals to all ranks and ends them."""
    try:
        return read_launched().launcher in ("torchrun", "accelerate launch", BY_NPROC)
    except ConfigError:  # of an incomplete environment; the command explains it
        return False


def _watch_launcher() -> threading.Event:
    """Send this rank SIGTERM when its launcher is gone, until the event is set.

    torchrun ends its ranks when it ends, unless it was killed by SIGKILL. Then the ranks would keep
    the run folder and their devices. A rank that waits for others outside of Python, as before the
    first step, handles no signal: it is ended after a while.
    """
    is_over, launcher = threading.Event(), os.getppid()

    def wait() -> None:
        while not is_over.wait(_POLL_S):
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)
                break
        while not is_over.wait(_AT_MOST_S):
            if not any(one.finishes_step for one in _process.open):
                os._exit(STOPPED)

    if has_agent():
        threading.Thread(target=wait, name="surestep-launcher", daemon=True).start()
    return is_over


def _detach_terminal() -> None:
    """Redirect stdout and stderr to nowhere if their terminal is gone, since writing would fail."""
    for number in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
