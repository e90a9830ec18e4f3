"""A watch over ranks: who keeps the others waiting is named, with the line where each rank stands.

Two threads a rank, beside the step, which they cost nothing. One says through the launcher's store,
over a connection of its own, where the rank stands; the other looks whether the rank gets on, and
where it does not, what the others say. They are two, because a store that is out of reach lets
whoever asks it wait for ever.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from hashlib import sha256

from torch.distributed.distributed_c10d import Store

from surestep.base.errors import ParallelError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.errors import is_of_network, timed_out
from surestep.engine.distributed.hang_report import (
    blocking_ranks,
    capitalize_first,
    describe_lost_rank,
    hang_summary,
    lagging_ranks,
    rank_table,
)
from surestep.engine.distributed.rank_logging import print_all
from surestep.engine.distributed.rank_status import (
    RankStatus,
    StackLine,
    machine_name,
    thread_stack,
    traceback_stack,
)
from surestep.engine.distributed.timeouts import GroupTimeouts

BEAT_S = 0.5  # between two words; 50 µs of this process each
QUIET_S = 60.0  # that a rank stands still before it is asked why, or half of the timeout
_GOODBYE_S = 2.0  # that the process which keeps the store waits for the others to have read it
_FAILED = "failed"


class HangMonitor:
    """Watches one rank, and tells of the others where it waits for them.

    Args:
        world: the ranks.
        store: of this start alone, as the launcher keeps it.
        patience: how long is waited.
        where: the store is, to be told.
        hosts: this very process keeps the store.
        local_size: processes of a machine.

    Attributes:
        failure: the rank that failed first, and of what; None where none did.
    """

    def __init__(
        self,
        world: Communicator,
        store: Store,
        patience: GroupTimeouts,
        *,
        where: str,
        hosts: bool,
        local_size: int,
    ) -> None:
        self.failure: tuple[int, str] | None = None
        self.patience = patience
        self._steps: Callable[[], int | None] = lambda: None
        self._note: Callable[[str, list[RankStatus]], None] = lambda text, stands: None
        self._first: int | None = None  # that was done before this process took one
        self._world = world
        # torch's stubs lack it: the same store over a connection of its own.
        clone: Callable[[], Store] = store.clone  # type: ignore[attr-defined]
        self._store, self._beating = clone(), clone()
        self._where = where
        self._hosts = hosts
        self._node = world.rank // local_size
        self._thread = threading.get_ident()
        self._beat_s = min(BEAT_S, patience.later_s / 20)
        self._over = threading.Event()
        self._known = threading.Event()  # that a rank failed
        self._count = 0
        self._stack: tuple[StackLine, ...] = ()  # where this rank stood when it gave up
        self._place: object = None
        self._since = self._heard = time.monotonic()
        self._asks = self._told = False
        self._stands: dict[int, RankStatus] = {}
        self._seen: dict[int, tuple[float, float]] = {}  # when a rank was last heard; by its clock
        self._failed_at = 0.0

    def start(self) -> None:
        """Say where this rank stands, and watch from now on."""
        self._say(self._beating)
        self._world.all_gather_text("")  # each has said so once
        self._read(self._beating)
        for work in (self._beat, self._look):
            threading.Thread(target=work, daemon=True, name="surestep-watch").start()

    def stop(self) -> None:
        """Watch no more; the process that keeps the store waits until the others know."""
        self._over.set()
        with suppress(RuntimeError):
            self._store.set(f"knows/{self._world.rank}", "")
            end = time.monotonic() + _GOODBYE_S
            while self._hosts and time.monotonic() < end and not self._all_know():
                time.sleep(0.01)

    def attach(
        self, steps: Callable[[], int], note: Callable[[str, list[RankStatus]], None]
    ) -> None:
        """Take in what tells how many steps are done, and what keeps what is told."""
        self._first = steps()
        self._steps, self._note = steps, note

    def settle(self) -> bool:
        """Wait the shorter time where a step of this process is done; say whether."""
        is_done = self._steps() != self._first
        if is_done:
            self.patience.use_steady_timeout()
        return is_done

    def long(self) -> AbstractContextManager[None]:
        """Return the context of a wait that may take long."""
        return self.patience.long_timeout()

    def claim_message(self, say: str) -> bool:
        """Say whether no other rank has said this text before; where that is not known, yes."""
        try:
            return int(self._store.add(f"said/{sha256(say.encode()).hexdigest()}", 1)) == 1
        except RuntimeError:
            return True

    def failed(self, error: BaseException) -> None:
        """Let the others know why this rank ends, unless they ended first."""
        if self.failure is None:
            self.failure = self._world.rank, _sentence(error)
            with suppress(RuntimeError):
                self._store.set(_FAILED, json.dumps(self.failure))

    def explain_error(self, error: Exception) -> Exception:
        """Return what to raise for an error of the network: which rank is missing, and why."""
        if not is_of_network(error):
            return error
        own, wait_s = self._world.rank, 4 * self._beat_s
        self._stack = traceback_stack(error)
        self._asks = True
        self._known.wait(wait_s)
        if self.failure is not None and self.failure[0] != own:
            rank, text = self.failure
            name = self._stands[rank].name
            return ParallelError(f"Rank {own} cannot go on: {name} failed. {text}")
        if timed_out(error):
            waited = f"Rank {own} gave up after {self.patience.seconds:g} s of waiting."
            return ParallelError(f"{waited} {self._blame()}")
        self._over.wait(wait_s)
        return ParallelError(f"Rank {own} cannot go on. {self._blame()}")

    def _beat(self) -> None:
        """Say again and again where this rank stands, and hear whether one failed."""
        while not self._over.wait(self._beat_s):
            try:
                self._say(self._beating)
                if self._asks:
                    self._read(self._beating)
                if not self._known.is_set() and self._beating.check([_FAILED]):
                    rank, text = json.loads(self._beating.get(_FAILED))
                    self.failure = self.failure or (rank, text)
                    self._failed_at = time.monotonic()
                    self._known.set()
                    self._beating.set(f"knows/{self._world.rank}", "")
            except RuntimeError:  # it is gone; the other thread tells, if that matters
                return
            self._heard = time.monotonic()

    def _say(self, store: Store) -> None:
        self._count += 1
        store.set(status_key(self._world.rank), self.status().to_json())

    def status(self) -> RankStatus:
        """Return where this rank stands."""
        done = self._steps()
        return RankStatus(
            rank=self._world.rank,
            node=self._node,
            machine=machine_name(),
            process=os.getpid(),
            step=None if done is None else done + 1,
            count=self._count,
            still_s=time.monotonic() - self._since,
            stack=self._stack or thread_stack(self._thread),
            talks=self._world.n_collectives,
        )

    def _read(self, store: Store) -> None:
        """Read where all ranks stand, and note who has said something since the last time."""
        ranks = range(self._world.size)
        for text in store.multi_get([status_key(rank) for rank in ranks]):
            stand = RankStatus.from_json(text.decode())
            before = self._stands.get(stand.rank)
            if before is None or before.count != stand.count:
                self._seen[stand.rank] = time.monotonic(), time.time()
            self._stands[stand.rank] = stand

    def _all_know(self) -> bool:
        keys = [f"knows/{rank}" for rank in range(self._world.size)]
        return bool(self._store.check(keys))

    def _look(self) -> None:
        """Look again and again whether this rank gets on."""
        while not self._over.wait(self._beat_s):
            now, steps = time.monotonic(), self._steps()
            place = (steps, self._world.n_collectives)
            if place != self._place:
                if self._told:
                    self._tell(f"The ranks go on after {now - self._since:.3g} s.", [])
                self._place, self._since, self._asks, self._told = place, now, False, False
                continue
            if self._known.is_set():
                self._end_if_stuck(now)
            quiet_s = min(QUIET_S, self.patience.seconds / 2)
            self._asks = self._asks or now - self._since >= quiet_s
            if not self._told and now - self._since >= 1.5 * quiet_s:
                self._told = self._compare(now, quiet_s / 4)

    def _silent(self, since: float) -> dict[int, float | None]:
        """Return the ranks that were not heard of since then, and when they last were."""
        own = self._world.rank
        return {
            rank: clock
            for rank, (seen, clock) in self._seen.items()
            if rank != own and seen < since
        }

    def _compare(self, now: float, late_s: float) -> bool:
        """Tell who keeps the others waiting; say whether that is settled.

        Args:
            now: by the clock of this process.
            late_s: after which who was not heard of is silent.
        """
        waited_s = now - self._since
        ends = f"The run ends with an error after {self.patience.seconds:g} s of that."
        if now - self._heard > late_s:
            self._tell(f"{self._cut_off()} {ends}", [self.status()])
            return True
        silent = self._silent(now - late_s)
        stands = {**self._stands, self._world.rank: self.status()}
        is_waited = lagging_ranks(stands) or any(each.is_waiting for each in stands.values())
        if not silent and not is_waited:
            return False  # all are at work
        told_by = min(rank for rank in stands if rank not in silent)
        if told_by == self._world.rank:
            lines = [hang_summary(stands, silent, waited_s), "Where each rank stands:"]
            text = "\n".join([*lines, *rank_table(stands, silent), ends])
            self._tell(text, [stands[rank] for rank in sorted(stands)])
        return True

    def _cut_off(self) -> str:
        """Say that nobody is heard, and who is out of reach."""
        own = self.status()
        others = [each.name for rank, each in self._stands.items() if each.node != own.node]
        far = f" Out of reach may be {', '.join(others[:8])}." if others else ""
        step = "before the first step" if own.step is None else f"in step {own.step}"
        return (
            f"{capitalize_first(own.name)} hears nothing from the store of the launcher at "
            f"{self._where} any more: the process there is stopped or gone, or the network is "
            f"down.{far}\nIt stands {step}: {own.line}."
        )

    def _blame(self) -> str:
        """Say in a sentence who is missing, for the error that ends this rank."""
        late = time.monotonic() - 3 * self._beat_s
        if self._heard < late:
            return self._cut_off()
        silent = self._silent(late)
        stands = {**self._stands, self._world.rank: self.status()}
        ranks = blocking_ranks(stands, silent)
        if not ranks:
            return "All ranks waited for each other."
        return " ".join(
            describe_lost_rank(stands[rank], is_silent=bool(silent)) for rank in ranks[:8]
        )

    def _tell(self, text: str, stands: list[RankStatus]) -> None:
        print_all(text)
        self._note(text, stands)

    def _end_if_stuck(self, now: float) -> None:
        """End this process where another rank failed, and this one does not come to hear of it."""
        if now - max(self._failed_at, self._since) < self.patience.seconds:
            return
        assert self.failure is not None
        stand = self.status()
        text = (
            f"{capitalize_first(stand.name)} is ended: rank {self.failure[0]} failed. "
            f"{self.failure[1]}"
        )
        at = "" if stand.line in text else f" It stands at {stand.line}"
        print_all(f"{text}{at}")
        os._exit(1)


def status_key(rank: int) -> str:
    """Return the key of where a rank stands, which is another with each beat."""
    return f"stand/{rank}"


def _sentence(error: BaseException) -> str:
    """Return an error in one line, with the line of the user's where it came from."""
    name = f"{type(error).__name__}: {error}".splitlines()[0]
    lines = [each for each in traceback_stack(error) if each.is_of_user]
    return f"{name} ({lines[0]})" if lines else name
