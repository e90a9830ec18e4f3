"""A DataLoader of our own whose workers are watched, and end with it.

torch reports a worker that died by raising from its handler of SIGCHLD, wherever the main thread
is: in the middle of an optimizer's step too. Here it is raised only while a batch is waited for.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any
from weakref import WeakSet

from torch.utils.data import DataLoader

from surestep.base.errors import WorkerError
from surestep.engine.data.signals import kill_tree

_PATIENCE_S = 5.0  # for workers to end after they were asked to
_loaders: "WeakSet[Loader]" = WeakSet()  # those that have started workers
_torch_handler: list[Callable[[int, FrameType | None], object]] = []
_waiting: list[int] = []  # threads that wait for a batch


class Loader:
    """A DataLoader that raises `WorkerError` for a worker that died, and ends its workers.

    Args:
        make: makes the DataLoader; called again after `close()`.
    """

    def __init__(self, make: Callable[[], "DataLoader[Any]"]) -> None:
        self._make = make
        self._loader = make()
        self._iterator: Any = None  # torch's, which has the workers
        self._process = 0  # a process that is forked from ours must leave them alone

    def __iter__(self) -> Iterator[Any]:
        """Read the data from its start; workers are started, or those that persist are reused.

        Raises:
            WorkerError: a worker died.
        """
        if not self._loader.num_workers:
            return iter(self._loader)
        return self._read()

    def _read(self) -> Iterator[Any]:
        """Yield the batches that the workers load."""
        if not self._loader.persistent_workers:
            self._end()  # those of a pass that was left
        self._process = os.getpid()
        batches: Any = None
        while True:
            _waiting.append(thread := threading.get_ident())
            try:
                if batches is None:
                    batches = self._iterator = iter(self._loader)
                    _loaders.add(self)
                    _watch()
                self._check()
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError:
                self._check()  # what torch says of a worker that died
                raise
            finally:
                _waiting.remove(thread)
            yield batch

    @property
    def _workers(self) -> list[BaseProcess]:
        return list(getattr(self._iterator, "_workers", ()))

    def _check(self) -> None:
        """Check that no worker died.

        Raises:
            WorkerError: one did; the others are killed, since what it held may block them.
        """
        if (died := self.find_dead()) is not None:
            kill_tree(*(each.pid for each in self._workers if each.is_alive() and each.pid))
            raise WorkerError(_describe(died, len(self._workers))) from None

    def find_dead(self) -> BaseProcess | None:
        """Return a worker that ended otherwise than it should, or None."""
        return next((each for each in self._workers if each.exitcode not in (None, 0)), None)

    def close(self) -> None:
        """End the workers: those that are not done in 5 seconds are killed."""
        if self._iterator is not None and self._process == os.getpid():
            self._end()
            self._loader = self._make()

    def _end(self) -> None:
        iterator, self._iterator = self._iterator, None
        if iterator is None:
            return
        workers = list(getattr(iterator, "_workers", ()))
        # In a thread, because it waits for ever where a worker died that held one of its locks.
        end = threading.Thread(target=iterator._shutdown_workers, daemon=True)
        end.start()
        dead = any(each.exitcode not in (None, 0) for each in workers)
        end.join(_PATIENCE_S / 10 if dead else _PATIENCE_S)
        kill_tree(*(each.pid for each in workers if each.is_alive() and each.pid))
        for each in workers:
            each.join(_PATIENCE_S)

    def __del__(self) -> None:
        """End the workers with the last reference to their loader."""
        if hasattr(self, "_process"):
            self.close()


def _describe(worker: BaseProcess, workers: int) -> str:
    """Say how a worker ended, why that may be, and what to do."""
    code = worker.exitcode or 0
    if code > 0:
        return (
            f"A data worker ended by itself (pid {worker.pid}, exit code {code}). "
            "data.num_workers=0 loads in the main process, which shows the error."
        )
    name = signal.Signals(-code).name
    if name == "SIGKILL":
        return (
            f"A data worker was killed, by the kernel for memory? (pid {worker.pid}, {name}). "
            f"Use fewer than data.num_workers={workers}, or a smaller data.prefetch_factor; "
            "dmesg names what the kernel killed."
        )
    if name == "SIGBUS":
        return (
            f"A data worker crashed (pid {worker.pid}, {name}): shared memory may be full. Use "
            f"fewer than data.num_workers={workers}, or enlarge /dev/shm (docker run --shm-size)."
        )
    return (
        f"A data worker was ended by a signal (pid {worker.pid}, {name}). data.num_workers=0 loads "
        "in the main process, which shows where it crashes."
    )


def _watch() -> None:
    """Handle SIGCHLD in front of torch's handler, once a process, and end workers at its exit."""
    if _torch_handler or threading.current_thread() is not threading.main_thread():
        return
    if callable(before := signal.getsignal(signal.SIGCHLD)):
        _torch_handler.append(before)
        signal.signal(signal.SIGCHLD, _on_child)
        atexit.register(_close_all)  # after torch's and multiprocessing's, so that it runs first


def _on_child(number: int, frame: FrameType | None) -> None:
    """Let torch's handler raise only while a batch is waited for, or for loaders not of ours."""
    try:
        _torch_handler[0](number, frame)
    except RuntimeError:
        ours = any(each.find_dead() for each in list(_loaders))
        if not ours or threading.get_ident() in _waiting:
            raise


def _close_all() -> None:
    for each in list(_loaders):
        each.close()
