"""A DataLoader whose workers are watched, ignore signals, and end with it.

torch reports a dead worker by raising in its handler of SIGCHLD, wherever the main thread is: in
the middle of an optimizer step too. This loader raises only while a batch is waited for.
"""

import atexit
import errno
import mmap
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import current_process, parent_process
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from pickle import PicklingError
from typing import Any
from weakref import WeakSet

from torch.utils.data import DataLoader

from surestep.base.errors import DataError, WorkerError
from surestep.base.processes import kill_tree, list_children
from surestep.base.temp_folders import use_for_workers
from surestep.engine import private
from surestep.engine.data.failures import Failed, checked, explain_shared_memory
from surestep.engine.data.worker_copies import Contents, find_change, list_contents, warn_of_change
from surestep.engine.host_memory import read_host_memory
from surestep.engine.object_search import Root

GRACE_S = 30.0  # between SIGTERM and SIGKILL: Slurm's, Kubernetes' and torchrun's
POLL_S = 0.5  # after this time a dead worker, or a dead main process, is noticed
_END_S = 5.0  # for workers to end after they were asked to
_BEGIN_S = 30.0  # for a worker to begin, which takes milliseconds
_FILES = 8  # that the process opens, and that each worker needs; measured: 2 and 5
_IGNORED = ("SIGINT", "SIGUSR1", "SIGHUP")
_PROCESSES = 2**16
# A byte for each process id, shared with workers that are forked: 1 when the worker runs.
_begun = mmap.mmap(-1, _PROCESSES)
_loaders: "WeakSet[Loader]" = WeakSet()  # those that have started workers


class _Pass(private.WorkerIterator or object):  # type: ignore[misc]
    """One pass with workers, which checks them every half second and not by SIGCHLD."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self.stuck: set[int] = set()  # workers that never began, by process id
        self._began_s = time.monotonic()
        super().__init__(loader)
        private.remove_worker_pids(id(self))
        self._worker_pids_set = False

    @property
    def workers(self) -> list[BaseProcess]:
        return list(getattr(self, "_workers", ()))

    def _try_get_data(self, timeout: float = POLL_S) -> tuple[bool, Any]:
        if time.monotonic() > self._began_s + _BEGIN_S:
            self._kill_stuck()
        found: tuple[bool, Any] = super()._try_get_data(timeout)
        return found

    def _kill_stuck(self) -> None:
        """Kill workers that never began.

        A fork of Python 3.11 and before blocks in the new process if another thread of C++ was
        entering Python at that moment. Only its main process can then end it.
        """
        for worker in self.workers:
            method = getattr(worker, "_start_method", None) or multiprocessing.get_start_method()
            has_begun = _begun[(worker.pid or 0) % _PROCESSES]
            if worker.pid and method == "fork" and worker.is_alive() and not has_begun:
                self.stuck.add(worker.pid)
                kill_tree(worker.pid)


class Loader(DataLoader[Any]):
    """A DataLoader that raises `WorkerError` for a worker that died, and ends its workers.

    Attributes:
        of_program: the program's objects of which workers have copies, each with its name.
        warns_of_changes: whether data that the program changes is reported.
    """

    of_program: tuple[Root, ...] = ()
    warns_of_changes = True
    _reported: frozenset[str] = frozenset()
    _pass: _Pass | None = None
    _process = 0  # a process that is forked from ours must not end the workers
    _contents: Contents | None = None  # of the program's objects when the workers began

    def _get_iterator(self) -> Any:
        if not self.num_workers or private.WorkerIterator is None:
            return super()._get_iterator()
        self.close()  # the workers of an abandoned pass
        if current_process().daemon:
            raise DataError(
                f"data.num_workers={self.num_workers}, and this process is a daemon of "
                "multiprocessing, which may start no processes. Use data.num_workers=0, or start "
                "this process with daemon=False."
            )
        _check_open_files(self.num_workers)
        use_for_workers()
        self._process = os.getpid()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")  # it advises to fork
                self._pass = _Pass(self)
        except (PicklingError, AttributeError, TypeError) as error:
            if "pickle" not in str(error):
                raise
            raise self._explain_pickling(error) from error
        except (OSError, RuntimeError) as error:
            if not _is_denied(error):
                raise
            raise self._explain_denied(error) from error
        _loaders.add(self)
        self.note_contents()
        return self._pass

    def _explain_pickling(self, error: Exception) -> DataError:
        """Return the error for data that a new process cannot get: it is not forked."""
        method = self.start_method
        return DataError(
            f"Data workers are started by {method!r}, so they get the dataset, its transforms and "
            f"collate_fn by pickle, which failed: {error}. Define functions and classes with def "
            "and class at the top level of a module, not as a lambda or within a function, and "
            "open files in the worker. Or use data.num_workers=0."
        )

    def _explain_denied(self, error: Exception) -> DataError:
        """Return the error for workers, or the thread that gets their batches, without memory."""
        reason = getattr(error, "strerror", None) or error
        return DataError(
            f"The system does not start data.num_workers={self.num_workers}: {reason}. Use "
            "data.num_workers=0, which starts none, or fewer workers; or raise the limit of this "
            f"process (ulimit -v, ulimit -u). {read_host_memory().describe()}"
        )

    @property
    def start_method(self) -> str:
        """How its workers are started: "fork", "spawn" or "forkserver"."""
        context = self.multiprocessing_context
        return str((multiprocessing if context is None else context).get_start_method())

    def end_outdated(self, part: str, epoch: int) -> None:
        """End the workers if the program has changed its data since they began, and warn once."""
        if self._pass is None or self._contents is None:
            return
        change = find_change(self._contents, list_contents(*self.of_program))
        if not change:
            return
        self.close()
        if self.warns_of_changes and change not in self._reported:
            self._reported |= {change}
            warn_of_change(change, part, epoch, self.start_method)

    def note_contents(self) -> None:
        """Note what the program's objects hold, as the workers have or will have it."""
        if self._pass is not None and self.persistent_workers:
            self._contents = list_contents(*self.of_program)

    def __iter__(self) -> Any:
        """Read the data from its start; raise WorkerError for a worker that died."""
        return self._read() if self.num_workers else super().__iter__()

    def _read(self) -> Iterator[Any]:
        take = partial(next, self._wait(super().__iter__))
        while True:
            try:
                batch = self._wait(take)
            except StopIteration:
                return
            yield checked(batch)

    def _wait(self, take: Callable[[], Any]) -> Any:
        try:
            self._check()
            return take()
        except (RuntimeError, OSError, EOFError):
            # A connection breaks a moment before the system reports that the worker has ended.
            end = time.monotonic() + POLL_S
            while time.monotonic() < end:
                self._check()
                time.sleep(0.01)
            raise

    def _check(self) -> None:
        """Raise WorkerError if a worker died; kill the others, which its locks may block."""
        if self._pass is None:
            return
        workers = self._pass.workers
        if (dead := next(filter(_has_failed, workers), None)) is not None:
            _kill(workers)
            imports_script = self.start_method != "fork"
            raise WorkerError(
                _describe(dead, len(workers), self._pass.stuck, imports_script=imports_script)
            ) from None

    def close(self, timeout_s: float = _END_S) -> None:
        """End the workers; those that have not ended after the time are killed."""
        if self._pass is None or self._process != os.getpid():
            return
        ended, self._pass, self._iterator = self._pass, None, None
        workers = ended.workers
        try:
            # In a thread, because it blocks if a worker died that had one of its locks.
            end = threading.Thread(target=ended._shutdown_workers, daemon=True)
            with suppress(RuntimeError):  # no memory for a thread: the workers are killed
                end.start()
                end.join(POLL_S if any(map(_has_failed, workers)) else timeout_s)
        finally:  # Ctrl-C may end the wait
            _kill(workers)
            for worker in workers:
                worker.join(_END_S)

    def __del__(self) -> None:
        """End the workers of a loader that nothing refers to.

        If the collector found it in a cycle, the queues that ask workers to end are closed already.
        """
        self.close(POLL_S)


def _is_denied(error: Exception) -> bool:
    """Return whether there is no memory for a new process or thread, or too many exist."""
    if getattr(error, "errno", None) in (errno.ENOMEM, errno.EAGAIN):
        return True
    return "can't start new thread" in str(error)


def _has_failed(worker: BaseProcess) -> bool:
    return worker.exitcode not in (None, 0)


def _kill(workers: list[BaseProcess]) -> None:
    kill_tree(*(worker.pid for worker in workers if worker.is_alive() and worker.pid))


@atexit.register  # after torch and multiprocessing, so it runs before their functions
def _close_all() -> None:
    for loader in list(_loaders):
        loader.close()


def _describe(worker: BaseProcess, workers: int, stuck: set[int], *, imports_script: bool) -> str:
    """Return how a worker ended, the likely cause, and what to do."""
    code = worker.exitcode or 0
    how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
    fewer = f"Use fewer than data.num_workers={workers}, or"
    what_to_do = "data.num_workers=0 loads in the main process, which shows the error."
    if worker.pid in stuck:
        what = f"did not begin within {_BEGIN_S:g} s: Python's fork can block if threads run"
        what_to_do = "Start the run again; data.num_workers=0 forks nothing."
    elif how == "SIGKILL":
        what = "was killed, possibly by the kernel because memory ran out"
        what_to_do = (
            f"{fewer} a smaller data.prefetch_factor; dmesg names what the kernel killed. "
            f"{read_host_memory().describe()}"
        )
    elif how == "SIGBUS":
        what = "crashed: shared memory may be full"
        what_to_do = f"{fewer} enlarge /dev/shm (docker run --shm-size)."
    else:
        what = "exited" if code > 0 else "was killed by a signal"
        if code == 1 and imports_script:
            what_to_do = (
                "It imports the script, and what the script does must not be done again there: put "
                f"it under if __name__ == '__main__':. If it is there, {what_to_do}"
            )
    return f"A data worker {what} (pid {worker.pid}, {how}). {what_to_do}"


def _check_open_files(workers: int) -> None:
    """Raise DataError if workers need more open files than allowed: the run would hang."""
    import resource  # which Windows lacks

    limit, opened = resource.getrlimit(resource.RLIMIT_NOFILE)[0], Path("/dev/fd")
    needs = _FILES * (1 + workers) + (len(list(opened.iterdir())) if opened.exists() else 0)
    if limit != resource.RLIM_INFINITY and needs > limit:
        raise DataError(
            f"data.num_workers={workers} needs about {needs} open files, and the limit of this "
            f"process is {limit}. Raise it (ulimit -n 1024), or use fewer workers."
        )


def begin_worker() -> None:
    """Have this worker ignore signals, SIGTERM for 30 s, and end with its main process.

    Signals go to every process of a job. The main process stops after its step and ends its
    workers. A worker that hangs ends by SIGTERM, later. No handler of Python's runs while a worker
    hangs outside of Python, so a thread waits. Processes that the worker started are killed too.
    """
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # a process it starts does not get it
    threading.Thread(target=_end_later, args=(read, os.getppid()), daemon=True).start()
    sys.excepthook = partial(_print_error, os.getppid(), sys.excepthook)
    Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]
    _begun[os.getpid() % _PROCESSES] = 1


def _end_later(pipe: int, parent: int) -> None:
    """End this worker when the main process has ended, or 30 s after SIGTERM.

    A forked worker then has a different parent. The sentinel shows it for a worker that a server
    forked, or whose main process ended before it began.
    """
    end, main = float("inf"), parent_process()
    ends = [pipe] if main is None else [pipe, main.sentinel]
    while time.monotonic() < end and not _has_lost(parent):
        ready, _, _ = select.select(ends, [], [], min(POLL_S, GRACE_S))
        if pipe in ready and signal.SIGTERM in os.read(pipe, 512):
            end = min(end, time.monotonic() + GRACE_S)
    kill_tree(*list_children(os.getpid()))
    os._exit(0)


def _has_lost(parent: int) -> bool:
    """Return whether the main process of this worker has ended."""
    main = parent_process()
    return os.getppid() != parent or (main is not None and not main.is_alive())


def _print_error(
    parent: int, own: Callable[..., object], kind: type[BaseException], *rest: object
) -> None:
    """Print an error as usual, unless a connection broke because the main process has ended.

    The system closes its connections a moment before it gives this process another parent.
    """
    end = time.monotonic() + POLL_S
    while issubclass(kind, (ConnectionError, EOFError)) and time.monotonic() < end:
        if _has_lost(parent):
            return
        time.sleep(0.01)
    own(kind, *rest)


def _send_error(queue: "Queue[Any]", error: Exception, sent: Any) -> None:
    """Send why a batch could not be sent, instead of it: the main process waits for it."""
    is_batch = isinstance(sent, tuple) and len(sent) == 2 and isinstance(sent[0], int)
    if not is_batch or type(sent[1]) is Failed or isinstance(error, ConnectionError):
        sys.excepthook(type(error), error, error.__traceback__)
        return
    text = f"A data worker could not send its batch: {type(error).__name__}: {error}."
    queue.put((sent[0], Failed(str(explain_shared_memory(error) or text))))
