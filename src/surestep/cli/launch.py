"""Start a command on several processes of this machine; read what launchers put before it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from surestep.base.errors import ConfigError
from surestep.engine.parallel.launch import BY_NPROC, NPROC, environment, read_launched

# A rank that hears that another failed says so and ends by itself; one that does not is ended.
GRACE_S = 15.0
_KILL_S = 30.0  # after that, as torchrun
_GLANCE_S = 0.05
_STOPPED = (0, os.EX_TEMPFAIL, 130)  # the others may still be saving, as long as that takes
_HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT)


def launch(processes: int, words: list[str]) -> int:
    """Run a command on so many processes; return the exit code of the first that failed.

    torchrun does as much and more; its own tracebacks would bury what our processes say, and it
    kills those that take more than 30 s to save.

    Raises:
        ConfigError: this process was started by a launcher already.
    """
    if read_launched().size > 1:
        raise ConfigError(
            f"{NPROC} {processes}, but {read_launched().by} has started several processes already. "
            f"Say it in one place: leave {NPROC} out."
        )
    from torch._C._distributed_c10d import TCPStore  # `surestep --help` needs no torch

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "surestep", *without_nproc(words)]
    with ExitStack() as stack:
        started: list[subprocess.Popen[bytes]] = []
        came = stack.enter_context(_handing_on(started))
        for rank in range(processes):
            said = {**os.environ, **environment(rank, processes, store.port)}
            # A session of its own: Ctrl-C of a terminal comes from here alone, and so once.
            child = subprocess.Popen(command, env=said, start_new_session=True)
            started.append(child)
            stack.callback(_end, child)
        return _wait(started, came)


def how_many(text: str) -> int:
    """Read how many processes are asked for.

    Raises:
        ConfigError: it is no number of processes.
    """
    with suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise ConfigError(f"{NPROC} {text} is not allowed: say how many processes, such as 2.")


@contextmanager
def _handing_on(started: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Hand the signals of this process on; yield those that came."""
    came: list[int] = []

    def on_signal(number: int, _: object) -> None:
        came.append(number)
        for each in started:
            each.send_signal(number)

    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in _HANDED_ON:
                # nohup lets SIGHUP be ignored. Ctrl-C is meant all the same, see trainer/signals.
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                    stack.callback(signal.signal, number, signal.signal(number, on_signal))
        yield came


def _wait(started: Sequence[subprocess.Popen[bytes]], came: Sequence[int]) -> int:
    """Wait for all; where one fails, end those that do not come to hear of it."""
    codes: dict[int, int] = {}
    failed_at = told_at = 0.0
    while len(codes) < len(started):
        for rank, each in enumerate(started):
            if rank not in codes and each.poll() is not None:
                codes[rank] = each.returncode
                _tell_of_signal(rank, each, by_us=bool(told_at or came))
        now = time.monotonic()
        failed = any(code not in _STOPPED for code in codes.values())
        failed_at = failed_at or (now if failed else 0.0)
        if failed_at and not told_at and now - failed_at > GRACE_S:
            told_at = now
            for each in started:
                each.terminate()
        if told_at and now - told_at > _KILL_S:
            for each in started:
                each.kill()
        time.sleep(_GLANCE_S)
    first = next((code for code in codes.values() if code), 0)
    return first if first >= 0 else 128 - first


def _tell_of_signal(rank: int, ended: subprocess.Popen[bytes], *, by_us: bool) -> None:
    if ended.returncode < 0 and not by_us:
        name = signal.Signals(-ended.returncode).name
        print(f"Rank {rank} (process {ended.pid}) was ended by {name}.", file=sys.stderr)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
        child.wait()


def without_launchers_words(words: list[str]) -> list[str]:
    """Return a command line without what a launcher put before the command.

    deepspeed says --local_rank=0, older launchers of torch --local-rank=0, which the environment
    says too. A -- that keeps torchrun from reading our options comes through on Python 3.13.
    """
    first = words[0] if words else ""
    if first == "--" or first.startswith(("--local_rank=", "--local-rank=")):
        return without_launchers_words(words[1:])
    return words


def without_nproc(words: list[str]) -> list[str]:
    """Return a command line without --nproc, in either form it is typed in."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and not word.startswith(f"{NPROC}="):
            kept += [] if word == NPROC else [word]
        skip = word == NPROC and not skip
    return kept


def as_typed(words: list[str]) -> list[str]:
    """Return a command line as it was typed: with the --nproc that this process was started by."""
    launched = read_launched()
    return [*words, NPROC, str(launched.size)] if launched.by == BY_NPROC else words
