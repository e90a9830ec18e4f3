"""The process group of a run: opened so that a start never meets an earlier one, and closed.

torchrun keeps one store for the workers of all its attempts, and gloo finds in it the addresses of
processes that are dead: of nine restarts three hung. So the processes that are alive first agree on
a word that no attempt before them had, and find each other under that.
"""

import itertools
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from surestep.base.errors import ParallelError
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.hang_monitor import QUIET_S, HangMonitor, status_key
from surestep.engine.distributed.hang_report import format_ranks
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.distributed.rank_logging import print_all
from surestep.engine.distributed.store_barrier import StoreBarrier
from surestep.engine.distributed.timeouts import GroupTimeouts

_GLANCE_S = 0.02  # between two looks into the store
_WORLDS = itertools.count()  # of this process: a group that is used again keeps its store


@contextmanager
def join_process_group(
    launched: LaunchInfo, *, backend: str, patience: GroupTimeouts
) -> Iterator[Communicator]:
    """Join the processes that were started together; leave them at the end, whatever happens.

    A process group that is there already is used, and left as it is.

    Args:
        launched: what the launcher said.
        backend: of the tensors: "gloo" or "nccl".
        patience: how long one waits for the others.

    Raises:
        ParallelError: not all of them came.
    """
    if launched.size == 1 and not dist.is_initialized():
        yield ALONE
        return
    timeout = timedelta(seconds=patience.start_s)
    own = not dist.is_initialized()
    hook = sys.excepthook  # torch wraps it with each group, and never takes the wrapping away
    store = _join(launched, backend, patience) if own else _get_default_store()
    try:
        host = dist.new_group(backend="gloo", timeout=timeout)
        beside = dist.new_group(backend="gloo", timeout=timeout)
        patience.groups = [host, dist.group.WORLD]
        world = Communicator(dist.get_rank(), dist.get_world_size(), host, beside)
        with _watched(world, store, patience, launched):
            yield world
    finally:
        if own:
            dist.destroy_process_group()
            sys.excepthook = hook


@contextmanager
def _watched(
    world: Communicator, store: Store, patience: GroupTimeouts, launched: LaunchInfo
) -> Iterator[None]:
    number = next(_WORLDS)
    # torch's stubs lack it: the same store over a connection of its own.
    own = store.clone()  # type: ignore[attr-defined]
    stands = PrefixStore(f"surestep/watch/{number}", own)
    world.store_barrier = StoreBarrier(
        PrefixStore(f"surestep/beside/{number}", own),
        rank=world.rank,
        size=world.size,
        patience=patience,
        ends=lambda: world.is_failing,
        pulse=lambda rank: stands.get(status_key(rank)),
    ).wait
    world.watch = watch = HangMonitor(
        world,
        PrefixStore(f"surestep/watch/{number}", store),
        patience,
        where=f"{launched.address}:{launched.port}",
        hosts=launched.rank == 0 and not launched.shares_store,
        local_size=launched.local_size,
    )
    watch.start()
    try:
        yield
    except BaseException as error:
        world.failed(error)
        raise
    finally:
        watch.stop()


def _join(launched: LaunchInfo, backend: str, patience: GroupTimeouts) -> Store:
    timeout = timedelta(seconds=patience.start_s)
    tell_s = min(QUIET_S, patience.later_s / 2)
    where = f"{launched.address}:{launched.port}"
    try:
        store: Store = TCPStore(
            launched.address,
            launched.port,
            launched.size,
            is_master=launched.rank == 0 and not launched.shares_store,
            timeout=timeout,
            wait_for_workers=False,  # the agreement waits, and tells for whom
        )
        word = agree_on_prefix(store, launched, timeout.total_seconds(), tell_s=tell_s)
        own = PrefixStore(f"surestep/{word}", store)
        dist.init_process_group(
            backend,
            store=own,
            rank=launched.rank,
            world_size=launched.size,
            timeout=timeout,
        )
    except (RuntimeError, TimeoutError) as error:
        raise ParallelError(
            f"Rank {launched.rank} of {launched.size} waited {timeout.total_seconds():g} s at "
            f"{where} for the others: {error}. Look whether all of them were started, and reach "
            "that address; with several networks say GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME)."
        ) from error
    return own


def agree_on_prefix(
    store: Store, launched: LaunchInfo, timeout_s: float, *, tell_s: float = QUIET_S
) -> str:
    """Return a word that the processes of this very start share, and no others.

    Each other rank leaves a word of its own, and waits for an answer to just that; what dead
    processes left there gets answers that nobody reads. The first rank goes on answering until all
    have thanked it for its word.

    Args:
        store: of the launcher.
        launched: where this rank stands.
        timeout_s: how long is waited.
        tell_s: after which it is told, once, who has not come.

    Raises:
        TimeoutError: somebody did not come.
    """
    began, own = time.monotonic(), uuid.uuid4().hex
    end, late = began + timeout_s, began + tell_s
    if launched.rank == 0:
        missing = set(range(1, launched.size))
        while missing:
            for rank in sorted(missing):
                if store.check([f"hello/{rank}"]):
                    store.set(f"answer/{store.get(f'hello/{rank}').decode()}", own)
                if store.check([f"thanks/{own}/{rank}"]):
                    missing.discard(rank)
            if missing and time.monotonic() > end:
                raise TimeoutError(f"ranks {sorted(missing)} did not come")
            if missing and time.monotonic() > late:
                _tell_late(missing, launched, tell_s, timeout_s)
                late = end
            time.sleep(_GLANCE_S if missing else 0)
        return own
    store.set(f"hello/{launched.rank}", own)
    while not store.check([f"answer/{own}"]):
        if time.monotonic() > end:
            raise TimeoutError("rank 0 did not come")
        if time.monotonic() > late:
            late = end
            if int(store.add(f"late/{launched.attempt}", 1)) == 1:  # one tells
                _tell_late({0}, launched, tell_s, timeout_s)
        time.sleep(_GLANCE_S)
    word = str(store.get(f"answer/{own}").decode())
    store.set(f"thanks/{word}/{launched.rank}", "")
    return word


def _tell_late(late: set[int], launched: LaunchInfo, waited_s: float, timeout_s: float) -> None:
    """Tell which ranks have not come, and on which machines they are to be."""
    nodes = {rank // launched.local_size for rank in late}
    who = f"{'rank' if len(late) == 1 else 'ranks'} {format_ranks(late)}"
    where = f"{'node' if len(nodes) == 1 else 'nodes'} {format_ranks(nodes)}"
    print_all(
        f"Rank {launched.rank} has waited {waited_s:g} s for {who} of {launched.size} ({where}) to "
        "come. A recipe may take long to read there, or its process may hang. The run ends with an "
        f"error after {timeout_s:g} s of that."
    )
