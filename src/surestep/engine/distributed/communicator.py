"""The processes of a run: who this one is, and how all of them come to one answer on the host.

What is agreed here are numbers and words of the host, over a group of its own on gloo, so that no
device is read and nothing of ours travels as a pickle. One process is a world of one, for which
each of these answers at once.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist

SIGNALS = ("Ctrl-C", "SIGTERM", "SIGUSR1", "SIGHUP")
PAUSES = (*SIGNALS, "pause", "max_time")  # what stops a run that can be resumed
WORKER_DIED = "a data worker died"  # on some rank: all of them save and stop at the same step
WORDS = ("stop", "save", "evaluate", WORKER_DIED, *PAUSES)


class HangMonitorProtocol(Protocol):
    """Who knows why another rank does not answer."""

    failure: tuple[int, str] | None

    def explain_error(self, error: Exception) -> Exception:
        """Return what to raise for an error of the network."""
        ...

    def failed(self, error: BaseException) -> None:
        """Let the others know why this rank ends."""
        ...

    def settle(self) -> bool:
        """Wait a shorter time where the first step is done; say whether."""
        ...

    def long(self) -> AbstractContextManager[None]:
        """Return the context of a wait that may take long."""
        ...

    def claim_message(self, say: str) -> bool:
        """Say whether no other rank has said this text before."""
        ...

    def attach(self, steps: Callable[[], int], note: Callable[[str, list[Any]], None]) -> None:
        """Take in what tells how many steps are done, and what keeps what is told."""
        ...


class Communicator:
    """The processes that make one step together.

    Attributes:
        rank: of this process, from 0.
        size: how many processes there are.
        group: over which the host's values travel; None in a world of one.
        beside: another such group of the same ranks, for what a thread does meanwhile.
        watch: over the others; None in a world of one.
        meeting: of the threads that talk over `beside`, before they do; it ends with the run.
        talks: how often this rank began to exchange something.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None, beside: Any = None) -> None:
        self.rank = rank
        self.size = size
        self.group = group
        self.beside = beside
        self.watch: HangMonitorProtocol | None = None
        self.store_barrier: Callable[[], None] | None = None
        self._is_aside = False
        self._leaves = threading.Event()  # this rank, by an error
        self.n_collectives = 0
        self._is_settled = False
        self.requests: set[str] = set()  # what this rank asks all for
        self.agreed: set[str] = set()  # what some rank asked for, at the last exchange
        self._began = time.monotonic()
        self._seconds = 0.0

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes, prints and tracks."""
        return self.rank == 0

    @property
    def background(self) -> "Communicator":
        """The same ranks, to be talked to by one thread beside the one that trains."""
        world = Communicator(self.rank, self.size, self.beside)
        world.store_barrier, world._is_aside = self.store_barrier, True
        return world

    @property
    def is_failing(self) -> bool:
        """Whether this rank leaves by an error, or another one failed."""
        return self._leaves.is_set() or (self.watch is not None and self.watch.failure is not None)

    @property
    def seconds(self) -> float:
        """The one clock by which all ranks act; of several, the first one's at the last exchange.

        Each rank's own would let them save or log at different steps.
        """
        return time.monotonic() if self.size == 1 else self._seconds

    def exchange(self, values: Sequence[float]) -> list[float]:
        """Add up the values of all ranks; what one rank wants is then agreed on all of them."""
        clock = self._read_clock()
        # A signal may come at any of these lines: what it wants goes now or at the next exchange.
        wanted, self.requests = self.requests, set()
        asked = [float(word in wanted) for word in WORDS]
        self._seconds, *sums = self.all_reduce_sum([clock, *asked, *values])
        self.agreed = {word for word, n in zip(WORDS, sums, strict=False) if n}
        return sums[len(WORDS) :]

    def summarize(self) -> tuple[float, float]:
        """Return whether this rank requests something, as 1 or 0, and its part of the clock.

        The sums over all ranks go to `agree_by`: together the two take the place of an exchange.
        The clock ticks ten times a second, so that most steps send what the one before sent.
        """
        return float(bool(self.requests)), round(self._read_clock(), 1)

    def agree_by(self, requests: float, seconds: float) -> None:
        """Set the clock of all ranks; what is requested they exchange now, which is seldom."""
        if requests:
            self.exchange(())
        else:
            self._seconds = seconds

    def _read_clock(self) -> float:
        """Return the seconds since the start on the first rank, 0 on the others."""
        if not self._is_settled and self.watch is not None:
            self._is_settled = self.watch.settle()
        return time.monotonic() - self._began if self.is_first else 0.0

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Add up the values of all ranks, each in its place."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def all_reduce_max(self, values: Sequence[float]) -> list[float]:
        """Return the largest value of all ranks, each in its place."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def all_gather_text(self, text: str) -> list[str]:
        """Return the text of every rank, in the order of ranks."""
        if self.size == 1:
            return [text]
        data = text.encode()
        longest = int(self.all_reduce_max([len(data)])[0])
        own = torch.zeros(8 + longest, dtype=torch.uint8)
        framed = bytearray(len(data).to_bytes(8, "little") + data)
        own[: len(framed)] = torch.frombuffer(framed, dtype=torch.uint8)
        each = [torch.empty_like(own) for _ in range(self.size)]
        with self.explain_errors():
            dist.all_gather(each, own, group=self.group)
        return [_text(one) for one in each]

    def broadcast_json(self, value: Any) -> Any:
        """Return what the first rank says, as JSON can hold it."""
        return json.loads(self.all_gather_text(json.dumps(value) if self.is_first else "null")[0])

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.all_reduce_sum([0.0])

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raise an error of the network as one that names the rank that is missing.

        Raises:
            ParallelError: another rank failed, is gone, or does not answer.
        """
        self.n_collectives += 1
        try:
            if self._is_aside and self.store_barrier is not None:
                self.store_barrier()
            yield
        except RuntimeError as error:
            said = self.explain_error(error)
            if said is error:
                raise
            raise said from error

    def explain_error(self, error: Exception) -> Exception:
        """Return what to raise for an error that may be of the network."""
        return error if self.watch is None else self.watch.explain_error(error)

    def failed(self, error: BaseException | None) -> None:
        """Let the other ranks know why this one ends, where it is an error."""
        if error is not None and self.size > 1:
            self._leaves.set()
        if self.watch is not None and isinstance(error, Exception):
            self.watch.failed(error)

    def claim_message(self, say: str) -> bool:
        """Say whether no other rank has said this text before; it is taken as said now."""
        return self.watch is None or self.watch.claim_message(say)

    def long_timeout(self) -> AbstractContextManager[None]:
        """Return the context in which one rank may let the others wait long."""
        return nullcontext() if self.watch is None else self.watch.long()

    def _reduced(self, values: Sequence[float], how: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        with self.explain_errors():
            dist.all_reduce(tensor, op=how, group=self.group)
        return list(tensor.tolist())


def _text(data: torch.Tensor) -> str:
    raw = data.numpy().tobytes()
    return raw[8 : 8 + int.from_bytes(raw[:8], "little")].decode()


ALONE = Communicator()
