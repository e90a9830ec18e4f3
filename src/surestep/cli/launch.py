"""Start a command on several processes of this machine; read what launchers put before it."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError
from surestep.engine.distributed.launcher_env import BY_NPROC, NPROC, NPROC_SAID, read_launched

_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "SIGQUIT")
_SAVING_S = "600"  # that a process which was asked to stop may take
_AT_ONCE_S = 10.0  # that one may take which was asked twice
_CODES = {
    signal.SIGINT: 130,
    **dict.fromkeys((signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP), os.EX_TEMPFAIL),
}


def launch(processes: int, words: list[str]) -> int:
    """Let torchrun start a command on so many processes; return the code that one would exit with.

    torchrun runs within this process, so that its own tracebacks do not bury what ours say.

    Raises:
        ConfigError: this process was started by a launcher already, or --nproc is said twice.
    """
    said = [word for word in words if word == NPROC or word.startswith(f"{NPROC}=")]
    if len(said) > 1:
        raise ConfigError(f"{NPROC} is said {len(said)} times. Say it once: {NPROC} {processes}.")
    if read_launched().size > 1:
        raise ConfigError(
            f"{NPROC} {processes}, but {read_launched().launcher} has started several processes "
            "already. "
            f"Say it in one place: leave {NPROC} out."
        )
    # `surestep --help` needs no torch.
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    torchrun: Any = import_module("torch.distributed.run")  # which has no types
    options = ["--standalone", "--nproc-per-node", str(processes), "--shutdown-timeout", _SAVING_S]
    options += ["--signals-to-handle", ",".join(_SIGNALS), "-m", "surestep", "--"]
    asked = torchrun.parse_args([*options, *strip_nproc(words)])
    with _quiet(processes):
        try:
            torchrun.run(asked)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            return _code(rank, failure.pid, failure.exitcode)
        except SignalException as stopped:
            _stop_at_once(stopped.sigval)
            return _CODES.get(stopped.sigval, 128 + stopped.sigval)
    return 0


def parse_nproc(text: str) -> int:
    """Read how many processes are asked for.

    Raises:
        ConfigError: it is no number of processes.
    """
    with suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise ConfigError(f"{NPROC} {text} is not allowed: say how many processes, such as 2.")


@contextmanager
def _quiet(processes: int) -> Iterator[None]:
    """Let torchrun say nothing itself, and leave this process as it was."""
    said = dict(os.environ)
    before = {each: signal.getsignal(getattr(signal, each)) for each in _SIGNALS}
    logging.disable()
    # Several processes with a thread for each core would wait for each other; torchrun's value.
    if processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[NPROC_SAID] = str(processes)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for name in os.environ.keys() - said.keys():
            del os.environ[name]
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _code(rank: int, process: int, code: int) -> int:
    """Return the exit code for that of a process, and tell of one that was killed."""
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    print(f"Rank {rank} (process {process}) was ended by {name}.", file=sys.stderr)
    return 128 - code


def _stop_at_once(number: int) -> None:
    """Hand on a second signal, which torchrun has left by without its processes."""
    end = time.monotonic() + _AT_ONCE_S
    left = [pid for pid in _children() if _is_running(pid)]
    for pid in left:
        os.kill(pid, number)
    while left and time.monotonic() < end:
        left = [pid for pid in left if _is_running(pid)]
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Return the processes that this one started, where the system tells."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return list(map(int, listed.read_text().split())) if listed.exists() else []


def _is_running(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def strip_launcher_args(words: list[str]) -> list[str]:
    """Return a command line without what a launcher put before the command.

    deepspeed says --local_rank=0, older launchers of torch --local-rank=0, which the environment
    says too. A -- that keeps torchrun from reading our options comes through on Python 3.13.
    """
    first = words[0] if words else ""
    if first == "--" or first.startswith(("--local_rank=", "--local-rank=")):
        return strip_launcher_args(words[1:])
    return words


def strip_nproc(words: list[str]) -> list[str]:
    """Return a command line without --nproc, in either form it is typed in."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and not word.startswith(f"{NPROC}="):
            kept += [] if word == NPROC else [word]
        skip = word == NPROC and not skip
    return kept


def original_argv(words: list[str]) -> list[str]:
    """Return a command line as it was typed: with the --nproc that this process was started by."""
    launched = read_launched()
    return [*words, NPROC, str(launched.size)] if launched.launcher == BY_NPROC else words
