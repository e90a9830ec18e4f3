"""Start a module in several processes on this machine, with torchrun."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from surestep.base.exit_codes import INTERRUPTED, STOPPED
from surestep.base.processes import list_children
from surestep.base.temp_folders import make_temp_folder
from surestep.engine.distributed.launcher_env import NPROC_VARIABLE, RESTART_VARIABLE

_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "SIGQUIT")
_SAVING_S = "600"  # time to stop after the first signal, in which a process saves
_KILLS_EARLY = (
    "torch {}: if this command gets a signal, torchrun kills processes that have not saved after "
    "30 s. In torch 2.13, they have 600 s."
)
_AT_ONCE_S = 10.0  # time to stop after the second signal
_CODES = {
    signal.SIGINT: INTERRUPTED,
    **dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP), STOPPED),
}


def launch_ranks(
    module: str, words: Sequence[str], processes: int, *, can_resume: bool = False
) -> int:
    """Start `python -m module` in several processes with torchrun; return the exit code.

    torchrun runs within this process, so that its own tracebacks do not hide the ranks' messages.
    If they `can_resume` by the same words, they are started again when they ask for it.
    """
    torchrun: Any = import_module("torch.distributed.run")  # which has no types
    options = ["--standalone", "--nproc-per-node", str(processes)]
    if "--shutdown-timeout" in torchrun.get_args_parser().format_help():
        options += ["--shutdown-timeout", _SAVING_S]
    else:
        print(_KILLS_EARLY.format(torch.__version__), file=sys.stderr)
    words = [*options, "-m", module, "--", *words]
    with _silence_torchrun(processes), make_temp_folder() as folder:
        restart = folder / "restart"
        if can_resume:
            os.environ[RESTART_VARIABLE] = str(restart)
        while (code := _run_once(torchrun, words)) and restart.exists():
            restart.unlink()
            print("Starting again, in smaller micro-batches.", file=sys.stderr)
        return code


def _run_once(torchrun: Any, words: Sequence[str]) -> int:
    """Start the processes, and wait until they have ended; return the exit code."""
    try:
        torchrun.run(torchrun.parse_args(words))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        print(f"Rank {rank} (process {failure.pid}) was killed by {name}.", file=sys.stderr)
        return 128 - failure.exitcode
    except SignalException as stopped:
        _stop_at_once(stopped.sigval)
        return _CODES.get(stopped.sigval, 128 + stopped.sigval)
    return 0


@contextmanager
def _silence_torchrun(processes: int) -> Iterator[None]:
    """Disable torchrun's logging; restore the environment and the signal handlers afterwards."""
    environment = dict(os.environ)
    before = {name: signal.getsignal(getattr(signal, name)) for name in _SIGNALS}
    signal.signal(signal.SIGUSR1, _stop)  # torchrun handles the others, and not all releases this
    logging.disable()
    # One thread per core in every process would oversubscribe the cores; torchrun sets 1 too.
    if processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[NPROC_VARIABLE] = str(processes)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _stop(number: int, frame: object) -> None:
    """Stop the processes as torchrun does for its own signals."""
    raise SignalException(f"Process {os.getpid()} got {number}", signal.Signals(number))


def _stop_at_once(number: int) -> None:
    """Forward a second signal to the ranks: torchrun exits on it without ending them."""
    end = time.monotonic() + _AT_ONCE_S
    running = [pid for pid in list_children(os.getpid()) if _is_running(pid)]
    for pid in running:
        os.kill(pid, number)
    while running and time.monotonic() < end:
        running = [pid for pid in running if _is_running(pid)]
        time.sleep(0.05)
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False
