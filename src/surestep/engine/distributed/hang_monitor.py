"""Hang monitor: names the rank that the others wait for, with its step and its Python line.

Each rank runs two daemon threads, which cost the step nothing. One publishes the rank's status in
the launcher's store, over a separate connection; the other checks whether the rank advances, and
if not, compares the statuses of all ranks. They are two because a call to a store that cannot be
reached never returns.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from traceback import FrameSummary
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from surestep.base.errors import ParallelError
from surestep.base.processes import describe_machine, has_ended
from surestep.base.text import print_escaped
from surestep.engine import private
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.distributed.rank_status import (
    RankStatus,
    blocking_ranks,
    capitalize_first,
    current_line,
    describe_lost_rank,
    error_stack,
    hang_summary,
    is_waiting,
    lagging_ranks,
    rank_table,
    thread_stack,
    user_line,
)

PUBLISH_S = 0.5  # between two statuses; 50 us of this process each
QUIET_S = 60.0  # a rank that does not advance for so long, or half of the timeout, is reported
_GOODBYE_S = 2.0  # for the others to read the failure before the store's process ends
_FAILED = "failed"
_GIVEN_UP = "Application timeout caused pair closure"  # gloo, of what it sends from C++
_GLOO = ("/gloo/", "gloo::", "Connection closed by peer", "Connection reset by peer", _GIVEN_UP)
_TIMED_OUT = (
    "Timed out waiting",
    "Watchdog caught collective operation timeout",
    "timed out",
    _GIVEN_UP,
)


def is_network_error(error: BaseException) -> bool:
    """Return whether an error of a collective means that another rank did not answer or is gone."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _GLOO)


def has_timed_out(error: BaseException) -> bool:
    """Return whether a network error is a timeout."""
    return any(text in str(error) for text in _TIMED_OUT)


class GroupTimeouts:
    """The timeouts of process groups: long until the first step is done, then short.

    Args:
        start_s: until the first step is done, and while the others wait for one rank to write.
        later_s: after that.
    """

    def __init__(self, start_s: float, later_s: float) -> None:
        self.start_s = start_s
        self.later_s = later_s
        self.groups: Sequence[Any] = ()
        self._is_steady = False
        self._long_waits = 0

    @property
    def seconds(self) -> float:
        """The current timeout."""
        return self.later_s if self._is_steady and not self._long_waits else self.start_s

    def use_steady_timeout(self) -> None:
        """Use the short timeout from now on."""
        if not self._is_steady:
            self._is_steady = True
            self._set()

    @contextmanager
    def long_timeout(self) -> Iterator[None]:
        """Use the long timeout in this context."""
        self._long_waits += 1
        self._set()
        try:
            yield
        finally:
            self._long_waits -= 1
            self._set()

    def _set(self) -> None:
        # torch has no public function for it; torchtitan does the same. Source:
        # https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/utils.py
        for group in self.groups:
            private.set_group_timeout(timedelta(seconds=self.seconds), group)


class HangMonitor:
    """Publishes the status of one rank, and reports the rank that it waits for.

    Args:
        launched: the processes that were started together.
        connect: opens the store of the ranks' statuses over a separate connection.
        timeouts: of the process groups.
        n_collectives: returns how many collectives this rank has begun.

    Attributes:
        failure: the rank that failed first, and its error; None if none did.
    """

    def __init__(
        self,
        launched: LaunchInfo,
        connect: Callable[[], Store],
        timeouts: GroupTimeouts,
        n_collectives: Callable[[], int],
    ) -> None:
        self.failure: tuple[int, str] | None = None
        self.timeouts = timeouts
        self._rank, self._size = launched.rank, launched.size
        self._node, self._host = launched.rank // launched.local_size, socket.gethostname()
        self._machine = describe_machine()
        self._store, self._publishing_store = connect(), connect()
        self._address = f"{launched.address}:{launched.port}"
        self._hosts_store = launched.rank == 0 and not launched.shares_store
        self._n_collectives = n_collectives
        self._steps: Callable[[], int | None] = lambda: None
        self._note: Callable[[str, list[RankStatus]], None] = lambda text, statuses: None
        self._thread = threading.get_ident()
        self._publish_s = min(PUBLISH_S, timeouts.later_s / 20)
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._other_failed = threading.Event()
        self._count = 0
        self._stack: list[FrameSummary] = []  # of the error by which this rank ended
        self._progress: object = None
        self._since = self._heard_at = time.monotonic()
        self._needs_others = self._is_reported = False
        self._statuses: dict[int, RankStatus] = {}
        self._seen_at: dict[int, float] = {}
        self._failed_at = 0.0

    def start(self) -> None:
        """Start the threads, after every rank has published its first status."""
        self._read_others()
        for work in (self._publish_loop, self._check_loop):
            thread = threading.Thread(target=work, daemon=True, name="surestep-monitor")
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop; the process that keeps the store waits until the others know of a failure."""
        self._stopped.set()
        with suppress(RuntimeError):
            self._store.set(f"knows/{self._rank}", "")
            end = time.monotonic() + _GOODBYE_S
            keys = [f"knows/{rank}" for rank in range(self._size)]
            while self._hosts_store and time.monotonic() < end and not self._store.check(keys):
                time.sleep(0.01)
        # A thread that returns from the store when Python has ended would abort the process. One
        # whose store cannot be reached never returns.
        for thread in self._threads:
            thread.join(_GOODBYE_S)

    def attach(
        self, steps: Callable[[], int], note: Callable[[str, list[RankStatus]], None]
    ) -> None:
        """Set what returns the number of steps done, and what records a report."""
        self._steps, self._note = steps, note

    def failed(self, error: BaseException) -> None:
        """Publish why this rank ends, unless another rank ended first."""
        if self.failure is None:
            text, line = f"{type(error).__name__}: {error}".splitlines()[0], user_line(error)
            self.failure = self._rank, f"{text} ({line})" if line else text
            with suppress(RuntimeError):
                self._store.set(_FAILED, json.dumps(self.failure))

    def explain_error(self, error: Exception) -> Exception:
        """Return the error to raise for a network error: which rank is missing, and why."""
        if not is_network_error(error):
            return error
        wait_s = 4 * self._publish_s
        self._stack = error_stack(error)
        self._needs_others = True
        self._other_failed.wait(wait_s)
        if self.failure is not None and self.failure[0] != self._rank:
            rank, text = self.failure
            name = self._statuses[rank].name
            return ParallelError(f"Rank {self._rank} cannot continue: {name} failed. {text}")
        if has_timed_out(error):
            waited = f"Rank {self._rank} gave up after {self.timeouts.seconds:g} s of waiting."
            return ParallelError(f"{waited} {self._describe_missing()}")
        self._stopped.wait(wait_s)
        return ParallelError(f"Rank {self._rank} cannot continue. {self._describe_missing()}")

    def publish(self) -> None:
        """Publish the status of this rank."""
        self._count += 1
        text = json.dumps(asdict(self.status()))
        self._publishing_store.set(status_key(self._rank), text)

    def status(self) -> RankStatus:
        """Return the status of this rank."""
        steps, stack = self._steps(), self._stack or thread_stack(self._thread)
        return RankStatus(
            rank=self._rank,
            node=self._node,
            name=f"rank {self._rank} (node {self._node} {self._host!r}, process {os.getpid()})",
            step=None if steps is None else steps + 1,
            n_collectives=self._n_collectives(),
            line=current_line(stack),
            is_waiting=is_waiting(stack),
            count=self._count,
            machine=self._machine,
            pid=os.getpid(),
        )

    def has_ended(self, rank: int) -> bool:
        """Return whether a rank's process is known to have ended: if it ran on this machine."""
        status = self._statuses.get(rank)
        return status is not None and has_ended(status.machine, status.pid)

    def _publish_loop(self) -> None:
        """Publish the status regularly, and learn whether another rank failed."""
        store = self._publishing_store
        while not self._stopped.wait(self._publish_s):
            try:
                self.publish()
                if self._needs_others:
                    self._read_others()
                if not self._other_failed.is_set() and store.check([_FAILED]):
                    rank, text = json.loads(store.get(_FAILED))
                    self.failure = self.failure or (rank, text)
                    self._failed_at = time.monotonic()
                    self._other_failed.set()
                    store.set(f"knows/{self._rank}", "")
            except RuntimeError:  # the store is gone; the other thread reports it if it matters
                return
            self._heard_at = time.monotonic()

    def _read_others(self) -> None:
        """Read the statuses of all ranks, and note which ranks have published a new one."""
        keys = [status_key(rank) for rank in range(self._size)]
        for text in self._publishing_store.multi_get(keys):
            status = RankStatus(**json.loads(text))
            before = self._statuses.get(status.rank)
            if before is None or before.count != status.count:
                self._seen_at[status.rank] = time.monotonic()
            self._statuses[status.rank] = status

    def _check_loop(self) -> None:
        """Check regularly whether this rank advances."""
        while not self._stopped.wait(self._publish_s):
            now, progress = time.monotonic(), (self._steps(), self._n_collectives())
            if progress != self._progress:
                if self._is_reported:
                    self._report(f"The ranks continue after {now - self._since:.3g} s.", [])
                self._progress, self._since = progress, now
                self._needs_others = self._is_reported = False
                continue
            if self._other_failed.is_set():
                self._exit_if_stuck(now)
            quiet_s = min(QUIET_S, self.timeouts.seconds / 2)
            self._needs_others = self._needs_others or now - self._since >= quiet_s
            if not self._is_reported and now - self._since >= 1.5 * quiet_s:
                self._is_reported = self._report_hang(now, quiet_s / 4)

    def _report_hang(self, now: float, late_s: float) -> bool:
        """Report which ranks the others wait for; return whether that is known.

        A rank is silent if it sent no status for `late_s`.
        """
        timeout_s = self.timeouts.seconds
        end = (
            f"If nothing changes, the run ends with an error {timeout_s:g} s after the wait began."
        )
        if now - self._heard_at > late_s:
            self._report(f"{self._describe_lost_store()} {end}", [self.status()])
            return True
        silent, statuses = self._survey(now - late_s)
        waits = lagging_ranks(statuses) or any(status.is_waiting for status in statuses.values())
        if not silent and not waits:
            return False  # all are busy
        if self._rank == min(rank for rank in statuses if rank not in silent):  # one reports
            lines = [hang_summary(statuses, silent, now - self._since), "What each rank is doing:"]
            lines += [*rank_table(statuses, silent), end]
            self._report("\n".join(lines), [statuses[rank] for rank in sorted(statuses)])
        return True

    def _survey(self, since: float) -> tuple[list[int], dict[int, RankStatus]]:
        """Return the other ranks that sent no status since then, and the newest status of all."""
        own = self._rank
        silent = [rank for rank, seen in self._seen_at.items() if rank != own and seen < since]
        return silent, {**self._statuses, own: self.status()}

    def _describe_lost_store(self) -> str:
        """Return which store cannot be reached, and which ranks may be cut off."""
        own = self.status()
        others = [status.name for status in self._statuses.values() if status.node != own.node]
        far = f" These ranks may be unreachable: {', '.join(others[:8])}." if others else ""
        return (
            f"{capitalize_first(own.name)} gets no answer from the launcher's store at "
            f"{self._address}: the process there is stopped or gone, or the network is down.{far}\n"
            f"It is {own.where}: {own.line}."
        )

    def _describe_missing(self) -> str:
        """Return which ranks are missing, for the error that ends this rank."""
        late = time.monotonic() - 3 * self._publish_s
        if self._heard_at < late:
            return self._describe_lost_store()
        silent, statuses = self._survey(late)
        ranks = blocking_ranks(statuses, silent)
        if not ranks:
            return "All ranks waited for each other."
        lost = [describe_lost_rank(statuses[rank], is_silent=bool(silent)) for rank in ranks[:8]]
        return " ".join(lost)

    def _report(self, text: str, statuses: list[RankStatus]) -> None:
        print_escaped(text, sys.stderr)
        self._note(text, statuses)

    def _exit_if_stuck(self, now: float) -> None:
        """End this process if another rank failed and the training thread does not notice."""
        if now - max(self._failed_at, self._since) < self.timeouts.seconds:
            return
        assert self.failure is not None
        rank, text = self.failure
        own = self.status()
        text = f"{capitalize_first(own.name)} is ended: rank {rank} failed. {text}"
        print_escaped(f"{text} It is at {own.line}", sys.stderr)
        os._exit(1)


def status_key(rank: int) -> str:
    """Return the store's key of a rank's status, which changes while the rank lives."""
    return f"status/{rank}"
