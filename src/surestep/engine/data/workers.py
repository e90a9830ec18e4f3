"""A DataLoader of our own whose workers are watched, and end with it.

torch reports a worker that died by raising from its handler of SIGCHLD, wherever the main thread
is: in the middle of an optimizer's step too. Here it is raised only while a batch is waited for.
"""

import atexit
import mmap
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_start_method
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, cast
from weakref import WeakSet

from torch.utils.data import DataLoader

from surestep.base.errors import DataError, WorkerError
from surestep.engine.data.worker_signals import ignore_signals_in_worker, kill_tree

_PATIENCE_S = 5.0  # for workers to end after they were asked to
_FILES, _FILES_EACH = 8, 8  # that the process opens, by a guess: seen were 2 + 5 a worker
_MOMENT_S = 0.5  # for a worker to end whose connection broke, or whose loader was abandoned
_BEGIN_S = 30.0  # for a worker to begin, which takes milliseconds
_PROCESSES = 2**16
# A byte for each process id, shared with workers that are forked.
_begun = mmap.mmap(-1, _PROCESSES)
_loaders: "WeakSet[Loader]" = WeakSet()  # those that have started workers
_torch_handler: list[Callable[[int, FrameType | None], object]] = []
_ending: list[list[BaseProcess]] = []  # workers that are being ended, their loader may be gone
_starting: list[int] = []  # threads that start workers
_waiting: list[tuple[int, "Loader"]] = []  # threads that wait for a batch, and whose


def begin_worker() -> None:
    """Leave signals to the main process, and let it know that this worker runs."""
    ignore_signals_in_worker()
    _begun[os.getpid() % _PROCESSES] = 1


class Loader:
    """A DataLoader that raises `WorkerError` for a worker that died, and ends its workers.

    Args:
        make: makes the DataLoader; called again after `close()`.
    """

    def __init__(self, make: Callable[[], "DataLoader[Any]"]) -> None:
        self._make = make
        self._loader = make()
        self._iterator: Any = None  # torch's, which has the workers
        self._began_s = 0.0
        self._stuck: set[int] = set()  # workers that never began, by process id
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
        batches = self._start()
        take = partial(next, batches)
        while True:
            try:
                batch = self._wait(take)
            except StopIteration:
                return
            yield batch

    def _start(self) -> Iterator[Any]:
        """Begin a pass with the workers that persist, or with new ones."""
        if self._loader.persistent_workers and self._iterator is not None:
            return cast(
                Iterator[Any], self._wait(lambda: iter(self._loader))
            )  # torch waits for their answers
        self._end()  # those of a pass that was left
        _check_open_files(self._loader.num_workers)
        self._process, self._began_s = os.getpid(), time.monotonic()
        _starting.append(thread := threading.get_ident())
        try:
            self._iterator = iter(self._loader)
            _loaders.add(self)
            _watch()
        finally:
            _starting.remove(thread)
        return cast(Iterator[Any], self._iterator)

    def _wait(self, do: Callable[[], Any]) -> Any:
        """Do what waits for workers.

        Raises:
            WorkerError: one died.
        """
        here = (threading.get_ident(), self)
        try:
            _waiting.append(here)
            try:
                self._check()
                return do()
            finally:
                _waiting.remove(here)
        except (RuntimeError, OSError, EOFError):
            # What torch says of a worker that died, or a connection to it that broke, which it does
            # a moment before the system says that the worker has ended.
            end = time.monotonic() + _MOMENT_S
            while time.monotonic() < end:
                self._check()
                time.sleep(0.01)
            raise

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
            if died.pid in self._stuck:
                raise WorkerError(_describe_stuck(died)) from None
            raise WorkerError(_describe(died, len(self._workers))) from None

    def find_dead(self) -> BaseProcess | None:
        """Return a worker that ended otherwise than it should, or None."""
        return next((each for each in self._workers if each.exitcode not in (None, 0)), None)

    def kill_stuck(self) -> None:
        """Kill workers that never began: they would be waited for for ever.

        A fork of Python 3.11 and before blocks in the new process if another thread of C++ was
        entering Python at that moment. No code of the worker runs then, so that only its main
        process can end it.
        """
        if time.monotonic() < self._began_s + _BEGIN_S:
            return
        for each in self._workers:
            pid, method = each.pid, getattr(each, "_start_method", None) or get_start_method()
            if pid and method == "fork" and each.is_alive() and not _begun[pid % _PROCESSES]:
                self._stuck.add(pid)
                kill_tree(pid)

    def close(self) -> None:
        """End the workers: those that are not done in 5 seconds are killed."""
        if self._iterator is not None and self._process == os.getpid():
            self._end()
            self._loader = self._make()

    def _end(self, patience_s: float = _PATIENCE_S) -> None:
        if self._iterator is None:
            return
        _ending.append(workers := self._workers)
        try:
            # In a thread, because it waits for ever where a worker died that held one of its locks.
            end = threading.Thread(target=self._iterator._shutdown_workers, daemon=True)
            end.start()
            dead = any(each.exitcode not in (None, 0) for each in workers)
            end.join(_MOMENT_S if dead else patience_s)
        finally:  # Ctrl-C may end the wait
            kill_tree(*(each.pid for each in workers if each.is_alive() and each.pid))
            for each in workers:
                each.join(_PATIENCE_S)
            self._iterator = None
            _ending.remove(workers)  # until here the handler of SIGCHLD must know them

    def __del__(self) -> None:
        """End the workers of a loader that nothing refers to; they load what no one reads.

        If the collector found it in a cycle, it closed the queues by which the workers are asked to
        end before it came here, and they never end by themselves.
        """
        if getattr(self, "_process", None) == os.getpid():
            self._end(_MOMENT_S)


def _describe_stuck(worker: BaseProcess) -> str:
    return (
        f"A data worker did not begin within {_BEGIN_S:g} s (pid {worker.pid}): Python's fork can "
        "block where threads run. Start the run again; data.num_workers=0 forks nothing."
    )


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


def _check_open_files(workers: int) -> None:
    """Check that as many files may be open as data workers need.

    Without them torch's queues fail within the workers, and the run would wait for ever.

    Raises:
        DataError: there may not.
    """
    most, opened = resource.getrlimit(resource.RLIMIT_NOFILE)[0], Path("/dev/fd")
    needs = _FILES + _FILES_EACH * workers + (len(list(opened.iterdir())) if opened.exists() else 0)
    if most != resource.RLIM_INFINITY and needs > most:
        raise DataError(
            f"data.num_workers={workers} needs about {needs} open files, and the limit of this "
            f"process is {most}. Raise it (ulimit -n 1024), or use fewer workers."
        )


def _watch() -> None:
    """Handle SIGCHLD in front of torch's handler, once a process, and end workers at its exit."""
    if _torch_handler or threading.current_thread() is not threading.main_thread():
        return
    if callable(before := signal.getsignal(signal.SIGCHLD)):
        _torch_handler.append(before)
        signal.signal(signal.SIGCHLD, _on_child)
        threading.Thread(target=_remind, name="surestep-workers", daemon=True).start()
        atexit.register(_close_all)  # after torch's and multiprocessing's, so that it runs first


def _remind() -> None:
    """Kill workers that never began, and send SIGCHLD again while a dead one was not noticed.

    What its handler raises can be lost: Python ignores it where it comes in a destructor, or in a
    callback around a fork.
    """
    while True:
        time.sleep(_MOMENT_S)
        _kill_stuck()
        if any(loader.find_dead() for _, loader in list(_waiting)):
            os.kill(os.getpid(), signal.SIGCHLD)


def _kill_stuck() -> None:
    for _, loader in list(_waiting):  # a name of its own: nothing refers to a loader afterwards
        loader.kill_stuck()


def _on_child(number: int, frame: FrameType | None) -> None:
    """Raise only for the loader that is waited for, or for one that is none of ours."""
    failure: RuntimeError | None = None
    try:
        _torch_handler[0](number, frame)
    except RuntimeError as error:
        failure = error
    own = threading.get_ident()
    if own in _starting:
        return  # the loader looks for those that died when all have been started
    if any(loader.find_dead() for thread, loader in list(_waiting) if thread == own):
        raise failure or RuntimeError("a data worker died")
    ended = any(process.exitcode for workers in list(_ending) for process in workers)
    if failure is not None and not ended and not any(each.find_dead() for each in list(_loaders)):
        raise failure


def _close_all() -> None:
    for each in list(_loaders):
        each.close()
