"""Where threads of the ranks wait for each other, as long as the run goes on.

A collective that has begun cannot be taken back: its process group waits out the timeout, and the
process cannot end before. Who writes a checkpoint may wait an hour for the slowest disk. So that
wait is here, through the store, and a collective begins when all ranks have come to it.
"""

import time
from collections.abc import Callable

from torch.distributed.distributed_c10d import Store

from surestep.base.errors import ParallelError
from surestep.engine.parallel.patience import Patience

WRITING_S = 3600.0
_GLANCE_S = 0.02  # between two looks into the store


class Meeting:
    """Lets one thread of each rank wait until all of them are at the same place.

    Args:
        store: of these threads alone, over a connection of its own.
        rank: of this process.
        size: how many ranks there are.
        patience: half of its time is waited where the run ends: so much can still be written.
        ends: whether this rank leaves by an error, or another one failed.
    """

    def __init__(
        self, store: Store, *, rank: int, size: int, patience: Patience, ends: Callable[[], bool]
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._patience = patience
        self._ends = ends
        self._count = 0
        self._end: float | None = None  # of all waiting, where the run ends

    def wait(self) -> None:
        """Wait until all ranks have come here as often as this one.

        Raises:
            ParallelError: the run ends, or an hour has passed, and some did not come.
        """
        self._count += 1
        own, before = (f"{count}/{self._rank}" for count in (self._count, self._count - 1))
        all_of_them = [f"{self._count}/{rank}" for rank in range(self._size)]
        latest = time.monotonic() + WRITING_S
        self._store.set(own, "")
        while not self._store.check(all_of_them):
            now = time.monotonic()
            if self._end is None and self._ends():
                self._end = now + self._patience.seconds / 2
            if now > (latest if self._end is None else self._end):
                raise ParallelError(f"{self._missing()} while a checkpoint was written.")
            time.sleep(_GLANCE_S)
        self._store.delete_key(before)  # all have come from there

    def _missing(self) -> str:
        ranks = range(self._size)
        late = [rank for rank in ranks if not self._store.check([f"{self._count}/{rank}"])]
        return f"Rank {self._rank} waited in vain for ranks {late}"
