"""Fork two ranks from one warm process: a start needs no import, and ranks may crash."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.multi_rank.torchrun import free_port

LIMIT_S, AT_ONCE = 240, 5  # ends a test that hangs, even on a busy machine
Acts = Mapping[str, Callable[[], object]]
CODES = "codes.json"


class Ended(NamedTuple):
    """The exit codes, durations and outputs of two ranks."""

    codes: list[int]
    seconds: list[float]
    wrote: list[str]


class Rank(NamedTuple):
    """A running rank of a case, and when it was started."""

    name: str
    number: int
    begun: float
    is_stopped: bool = False  # by SIGSTOP


def run_forked(folder: Path, acts: Acts) -> None:
    """Run each case on two ranks, a few at once; write the outcome of each rank to the folder.

    The output of a rank goes to `NAME-RANK.txt`. A rank that is stopped by SIGSTOP is killed when
    the other one has exited, as a launcher does.
    """
    codes: dict[str, Any] = {}
    waiting, running = list(acts), dict[int, Rank]()
    while waiting or running:
        if waiting and len({rank.name for rank in running.values()}) < AT_ONCE:
            name = waiting.pop(0)
            running |= _start(folder, name, acts[name])
        elif not _reap(running, codes):
            time.sleep(0.02)
    (folder / CODES).write_text(json.dumps(codes))


def ended(folder: Path, names: Iterable[str]) -> dict[str, Ended]:
    """Return the outcomes of the ranks of `run_forked`."""
    found = json.loads((folder / CODES).read_text())
    return {
        name: Ended(
            [found[f"{name}-{rank}"]["code"] for rank in (0, 1)],
            [found[f"{name}-{rank}"]["seconds"] for rank in (0, 1)],
            [(folder / f"{name}-{rank}.txt").read_text() for rank in (0, 1)],
        )
        for name in names
    }


def _start(folder: Path, name: str, act: Callable[[], object]) -> dict[int, Rank]:
    """Fork both ranks of a case; return them by process id."""
    port, begun, started = free_port(), time.monotonic(), {}
    for number in (0, 1):
        pid = os.fork()
        if pid == 0:
            _be_rank(number, port, folder / f"{name}-{number}.txt", act)
        started[pid] = Rank(name, number, begun)
    return started


def _reap(running: dict[int, Rank], codes: dict[str, Any]) -> bool:
    """Record a rank that has ended, and kill those that never will; whether one has ended."""
    pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
    now = time.monotonic()
    has_ended = bool(pid) and not os.WIFSTOPPED(status)
    if pid and not has_ended:
        running[pid] = running[pid]._replace(is_stopped=True)
    if has_ended:
        rank = running.pop(pid)
        code, seconds = os.waitstatus_to_exitcode(status), now - rank.begun
        codes[f"{rank.name}-{rank.number}"] = {"code": code, "seconds": seconds}
    names = [rank.name for rank in running.values()]
    for left, rank in running.items():
        is_alone = names.count(rank.name) == 1
        if now - rank.begun > LIMIT_S or (is_alone and rank.is_stopped):
            os.kill(left, signal.SIGKILL)
    return has_ended


def _be_rank(number: int, port: int, wrote: Path, act: Callable[[], object]) -> None:
    """Run a case as one rank, and exit."""
    size = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    of_rank = {"RANK": str(number), "LOCAL_RANK": str(number), "MASTER_PORT": str(port)}
    os.environ.update(size | of_rank)
    said = os.open(wrote, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    code = 0
    try:
        act()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)
