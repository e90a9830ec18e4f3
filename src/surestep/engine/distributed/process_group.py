"""The process group of a run: opened so that a start never joins an earlier one, and closed.

torchrun keeps one store for the workers of all its attempts, and gloo finds in it the addresses of
dead processes: of nine restarts, three hung. So the processes that are alive first agree on a key
prefix that no earlier attempt had, and find each other under it.
"""

import itertools
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from surestep.base.errors import ParallelError
from surestep.base.text import print_escaped
from surestep.engine import private
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.hang_monitor import QUIET_S, GroupTimeouts, HangMonitor, status_key
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.distributed.rank_status import format_ranks

_POLL_S = 0.02  # between two reads of the store
_PULSE_S = 0.5  # between two checks whether a missing rank lives
_GROUPS = itertools.count()  # of this process: a group that is used again keeps its store
_MET, _GAVE_UP = "met", "gave up"


@contextmanager
def join_process_group(
    launched: LaunchInfo, *, backend: str, timeouts: GroupTimeouts
) -> Iterator[Communicator]:
    """Join the processes that were started together; leave them at the end.

    A process group that is already open is used, and not closed.

    Args:
        launched: the launcher's variables.
        backend: of the tensors: "gloo" or "nccl".
        timeouts: how long a rank waits for the others.

    Raises:
        ParallelError: not all of them arrived.
    """
    if launched.size == 1 and not dist.is_initialized():
        yield ALONE
        return
    timeout = timedelta(seconds=timeouts.start_s)
    is_own = not dist.is_initialized()
    hook = sys.excepthook  # torch wraps it with each group, and never removes the wrapper
    store = _open_group(launched, backend, timeouts) if is_own else private.get_default_store()
    try:
        host = dist.new_group(backend="gloo", timeout=timeout)
        background = dist.new_group(backend="gloo", timeout=timeout)
        timeouts.groups = [host, dist.group.WORLD]
        world = Communicator(dist.get_rank(), dist.get_world_size(), host, background)
        with _monitored(world, store, timeouts, launched):
            yield world
        # A thread of gloo may still release the tensor of the last exchange, which aborts the
        # process if Python has ended by then. A group that nothing refers to joins its threads.
        # After an error they are not joined: they may wait for a rank that failed.
        timeouts.groups = ()
        world.leave_groups()
    finally:
        if is_own:
            dist.destroy_process_group()
            sys.excepthook = hook


@contextmanager
def _monitored(
    world: Communicator, store: Store, timeouts: GroupTimeouts, launched: LaunchInfo
) -> Iterator[None]:
    number = next(_GROUPS)
    connect = connect_separately(store, number)
    own = connect()
    statuses = PrefixStore(f"surestep/monitor/{number}", own)
    world.monitor = monitor = HangMonitor(
        launched,
        lambda: PrefixStore(f"surestep/monitor/{number}", connect()),
        timeouts,
        n_collectives=lambda: world.n_collectives,
    )
    world.store_barrier = StoreBarrier(
        PrefixStore(f"surestep/background/{number}", own),
        world,
        timeouts,
        pulse=lambda rank: statuses.get(status_key(rank)),
        has_ended=monitor.has_ended,
    ).wait
    monitor.publish()
    world.barrier()
    monitor.start()
    try:
        yield
    except BaseException as error:
        world.failed(error)
        raise
    finally:
        monitor.stop()


def connect_separately(store: Store, number: int) -> Callable[[], Store]:
    """Return a function that opens this store over a separate connection.

    torch 2.6 cannot clone a store or return its prefix: the ranks agree on a different one, by the
    number of their group.
    """
    if hasattr(store, "clone"):  # which torch's stubs lack
        clone: Callable[[], Store] = store.clone
        return clone
    prefix = store.compare_set(f"surestep/prefix/{number}", "", uuid.uuid4().hex).decode()
    base: Any = store
    while isinstance(base, PrefixStore):
        base = base.underlying_store

    def connect() -> Store:
        is_remote = isinstance(base, TCPStore)
        own = TCPStore(base.host, base.port, is_master=False) if is_remote else base
        return PrefixStore(prefix, own)

    return connect


class StoreBarrier:
    """Lets one thread of each rank wait until all of them reach the same point.

    A collective that has begun cannot be cancelled, and its process cannot end before the timeout.
    Writing a checkpoint may take long on the slowest disk, so that wait is here, through the store,
    and a collective begins when all ranks have arrived. Either all ranks arrive, or none: the first
    decision in the store holds for all.

    Args:
        store: of these threads only, over a separate connection.
        world: the ranks.
        timeouts: after the long one a rank gives up; after half of the current one if a rank has
            failed, or a missing rank shows no sign of life.
        pulse: returns what changes as long as a rank lives.
        has_ended: returns whether a rank's process is known to have ended.
    """

    def __init__(
        self,
        store: Store,
        world: Communicator,
        timeouts: GroupTimeouts,
        *,
        pulse: Callable[[int], object],
        has_ended: Callable[[int], bool],
    ) -> None:
        self._store = store
        self._world = world
        self._timeouts = timeouts
        self._pulse = pulse
        self._has_ended = has_ended
        self._count = 0
        self._end: float | None = None  # of all waits, if the run ends

    def wait(self) -> None:
        """Wait until all ranks have called this as often as this one.

        Raises:
            ParallelError: some did not arrive in time.
        """
        self._count += 1
        own, ranks = self._world.rank, range(self._world.size)
        next_pulse = time.monotonic()
        latest = next_pulse + self._timeouts.start_s
        alive_at: dict[int, tuple[object, float]] = {}  # by rank: the last pulse, and since when
        ended = False
        self._store.set(self._key(own), "")
        while missing := [rank for rank in ranks if not self._store.check([self._key(rank)])]:
            now = time.monotonic()
            if self._end is None and self._world.is_failing:
                self._end = now + self._timeouts.seconds / 2
            if now >= next_pulse:
                next_pulse = now + _PULSE_S
                ended = any(map(self._has_ended, missing))
                for rank in missing:
                    pulse = self._pulse(rank)
                    if rank not in alive_at or alive_at[rank][0] != pulse:
                        alive_at[rank] = pulse, now
            oldest = min(alive_at[rank][1] for rank in missing)
            is_dead = ended or now - oldest > self._timeouts.seconds / 2
            is_late = now > (latest if self._end is None else self._end)
            if (is_late or is_dead) and self._decide(_GAVE_UP) == _GAVE_UP:
                how = "lost a process while" if ended else "timed out"
                raise ParallelError(
                    f"Rank {own} {how} waiting for ranks {missing} while a checkpoint was written."
                )
            if self._store.check([self._key("decision")]):
                break
            time.sleep(_POLL_S)
        if self._decide(_MET) == _GAVE_UP:
            raise ParallelError("Another rank stopped waiting while a checkpoint was written.")
        self._store.delete_key(self._key(own, -1))  # every rank has passed that point
        if own == 0:
            self._store.delete_key(self._key("decision", -1))

    def _key(self, what: object, back: int = 0) -> str:
        return f"{self._count + back}/{what}"

    def _decide(self, decision: str) -> str:
        """Set whether all have met here, unless another rank has; return what holds."""
        return str(self._store.compare_set(self._key("decision"), "", decision).decode())


def _open_group(launched: LaunchInfo, backend: str, timeouts: GroupTimeouts) -> Store:
    timeout = timedelta(seconds=timeouts.start_s)
    report_s = min(QUIET_S, timeouts.later_s / 2)
    began = time.monotonic()
    try:
        store: Store = TCPStore(
            launched.address,
            launched.port,
            launched.size,
            is_master=launched.rank == 0 and not launched.shares_store,
            timeout=timeout,
            wait_for_workers=False,  # `agree_on_prefix` waits, and reports for whom
        )
        prefix = agree_on_prefix(store, launched, timeouts.start_s, report_s=report_s)
        own = PrefixStore(f"surestep/{prefix}", store)
        dist.init_process_group(
            backend, store=own, rank=launched.rank, world_size=launched.size, timeout=timeout
        )
    except (RuntimeError, TimeoutError) as error:
        where = f"{launched.address}:{launched.port}"
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            raise ParallelError(
                f"Rank {launched.rank} of {launched.size} cannot listen at {where}: another "
                "process uses this port. Choose a free one: torchrun --master-port 29501, or the "
                "environment variable MASTER_PORT on every rank."
            ) from error
        waited_s = time.monotonic() - began
        raise ParallelError(
            f"Rank {launched.rank} of {launched.size} waited {waited_s:.1f} s at {where} for the "
            f"others: {error}. Check whether all of them were started and reach that address; with "
            "several networks, set GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME)."
        ) from error
    return own


def agree_on_prefix(
    store: Store, launched: LaunchInfo, timeout_s: float, *, report_s: float = QUIET_S
) -> str:
    """Return a key prefix that the processes of this start share, and no others.

    Each rank but 0 stores a random key and waits for the answer to that key; what dead processes
    stored gets answers that no one reads. Rank 0 answers until all have confirmed its prefix.

    Args:
        store: of the launcher.
        launched: the launcher's variables.
        timeout_s: how long to wait.
        report_s: rank 0 reports once, after this, which ranks have not arrived.

    Raises:
        TimeoutError: a rank did not arrive.
    """
    began, own = time.monotonic(), uuid.uuid4().hex
    if launched.rank == 0:
        missing = set(range(1, launched.size))
        is_reported = False
        while missing:
            for rank in sorted(missing):
                if store.check([f"hello/{rank}"]):
                    store.set(f"answer/{store.get(f'hello/{rank}').decode()}", own)
                if store.check([f"thanks/{own}/{rank}"]):
                    missing.discard(rank)
            waited_s = time.monotonic() - began
            if missing and waited_s > timeout_s:
                raise TimeoutError(f"ranks {sorted(missing)} did not arrive")
            if missing and waited_s > report_s and not is_reported:
                is_reported = True
                nodes = {rank // launched.local_size for rank in missing}
                print_escaped(
                    f"Rank 0 has waited {report_s:g} s for ranks {format_ranks(missing)} of "
                    f"{launched.size} (nodes {format_ranks(nodes)}). Reading the recipe may take "
                    "long there, or the process hangs. If nothing changes, the run ends with an "
                    f"error {timeout_s:g} s after the wait began.",
                    sys.stderr,
                )
            time.sleep(_POLL_S if missing else 0)
        return own
    store.set(f"hello/{launched.rank}", own)
    while not store.check([f"answer/{own}"]):
        if time.monotonic() - began > timeout_s:
            raise TimeoutError("rank 0 did not arrive")
        time.sleep(_POLL_S)
    prefix = str(store.get(f"answer/{own}").decode())
    store.set(f"thanks/{prefix}/{launched.rank}", "")
    return prefix
