"""Where threads of the ranks wait for each other, as long as the run goes on.

A collective that has begun cannot be taken back: its process group waits out the timeout, and the
process cannot end before. Who writes a checkpoint may wait an hour for the slowest disk. So that
wait is here, through the store, and a collective begins when all ranks have come to it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from torch.distributed.distributed_c10d import Store

from surestep.base.errors import ParallelError
from surestep.engine.distributed.timeouts import GroupTimeouts

WRITING_S = 3600.0
_GLANCE_S = 0.02  # between two looks into the store
_PULSE_S = 0.5  # between two looks whether a rank that is missing lives
_MET, _OVER = "met", "over"


class StoreBarrier:
    """Lets one thread of each rank wait until all of them are at the same place.

    Either all of them have met there, or none has: who gives up says so in the store, where one
    that comes later finds it.

    Args:
        store: of these threads alone, over a connection of its own.
        rank: of this process.
        size: how many ranks there are.
        patience: half of its time is waited where the run ends: so much can still be written; and
            as long for a rank that gives no sign of life.
        ends: whether this rank leaves by an error, or another one failed.
        pulse: returns of a rank what changes as long as it lives.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        size: int,
        patience: GroupTimeouts,
        ends: Callable[[], bool],
        pulse: Callable[[int], object],
    ) -> None:
        self._store = store
        self._rank = rank
        self._ranks = range(size)
        self._patience = patience
        self._ends = ends
        self._pulse = pulse
        self._count = 0
        self._end: float | None = None  # of all waiting, where the run ends

    def wait(self) -> None:
        """Wait until all ranks have come here as often as this one.

        Raises:
            ParallelError: the run ends, a rank is gone, or an hour has passed, and some did not
                come.
        """
        self._count += 1
        latest, looked = time.monotonic() + WRITING_S, 0.0
        pulses: dict[int, tuple[object, float]] = {}
        self._store.set(self._key(self._rank), "")
        while missing := self._missing():
            now = time.monotonic()
            if self._end is None and self._ends():
                self._end = now + self._patience.seconds / 2
            if now - looked > _PULSE_S:
                looked = now
                self._listen(pulses, missing, now)
            if now > (latest if self._end is None else self._end):
                self._give_up(f"Rank {self._rank} waited in vain for ranks {missing}")
            if silent := self._silent(pulses, missing, now):
                self._give_up(f"Rank {self._rank} hears nothing of ranks {silent} any more")
            if self._store.check([self._key("verdict")]):
                break  # somebody gave up
            time.sleep(_GLANCE_S)
        if self._decide(_MET) == _OVER:
            self._raise("Another rank gave up to wait for all of them")
        self._store.delete_key(self._key(self._rank, -1))  # all have come from there
        if self._rank == 0:
            self._store.delete_key(self._key("verdict", -1))

    def _key(self, what: object, back: int = 0) -> str:
        return f"{self._count + back}/{what}"

    def _missing(self) -> list[int]:
        if self._store.check([self._key(rank) for rank in self._ranks]):
            return []
        return [rank for rank in self._ranks if not self._store.check([self._key(rank)])]

    def _listen(
        self, pulses: dict[int, tuple[object, float]], missing: Sequence[int], now: float
    ) -> None:
        for rank in missing:
            pulse = self._pulse(rank)
            if rank not in pulses or pulses[rank][0] != pulse:
                pulses[rank] = pulse, now

    def _silent(
        self, pulses: Mapping[int, tuple[object, float]], missing: Sequence[int], now: float
    ) -> list[int]:
        since = now - self._patience.seconds / 2
        return [rank for rank in missing if rank in pulses and pulses[rank][1] < since]

    def _decide(self, verdict: str) -> str:
        """Say whether all have met here; return what was said first."""
        return str(self._store.compare_set(self._key("verdict"), "", verdict).decode())

    def _give_up(self, why: str) -> None:
        """Give up, unless all have come just now."""
        if self._decide(_OVER) == _OVER:
            self._raise(why)

    def _raise(self, why: str) -> NoReturn:
        raise ParallelError(f"{why} while a checkpoint was written.")
