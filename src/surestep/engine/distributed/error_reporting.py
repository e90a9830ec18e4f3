"""What a rank says of the error that ends it: once a machine, where all end by the same one."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256

from surestep.engine.distributed.hang_report import capitalize_first, format_ranks
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.distributed.rank_status import format_rank, machine_name

_MOMENT_S = 2.0  # between ranks that come to the same error; more than that, and both are named
_REACH_S = 1.0  # for the launcher's store; who waits longer is ended before it has told
_GLANCE_S = 0.02


def report_error_once(text: str, launched: LaunchInfo, tell: Callable[[str], None]) -> None:
    """Tell of an error on one of the ranks that have it, and name them where some have not.

    One of each machine tells, since each has a terminal or a file of its own. The launcher's store
    is asked, since most errors come before there is a process group. Where the launcher keeps none
    each rank tells, with its name.

    Args:
        text: of the error.
        launched: where this rank stands.
        tell: prints it.
    """
    own = capitalize_first(format_rank(launched.rank, launched.node, machine_name(), os.getpid()))
    if launched.size == 1 or not launched.shares_store:
        tell(text if launched.size == 1 else f"{own}: {text}")
        return
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed.distributed_c10d import PrefixStore, Store

    def having(store: Store) -> list[int]:
        return [rank for rank in range(launched.size) if store.check([f"has/{rank}"])]

    key = f"surestep/last/{launched.attempt}/{sha256(text.encode()).hexdigest()}"
    try:
        found = TCPStore(
            launched.address,
            launched.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=_REACH_S),
        )
        store = PrefixStore(key, found)
        store.set(f"has/{launched.rank}", "")
        told = f"told/{launched.node}"
        if int(store.add(f"tellers/{launched.node}", 1)) > 1:
            # An end of this process would end the one that tells.
            _until(lambda: store.check([told]), 2 * _MOMENT_S)
            return
        with _not_ended() as came:
            _until(lambda: bool(came) or len(having(store)) == launched.size, _MOMENT_S)
            ranks = having(store)
            some = own if len(ranks) == 1 else f"Ranks {format_ranks(ranks)}"
            tell(text if len(ranks) == launched.size else f"{some}: {text}")
            store.set(told, "")
    except RuntimeError:  # it is gone, or cannot be reached
        tell(f"{own}: {text}")


def _until(is_so: Callable[[], bool], most_s: float) -> None:
    end = time.monotonic() + most_s
    while not is_so() and time.monotonic() < end:
        time.sleep(_GLANCE_S)


@contextmanager
def _not_ended() -> Iterator[list[int]]:
    """Let SIGTERM, which torchrun sends to all as one ends, not come before what is to be told."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
