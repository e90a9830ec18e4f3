"""The processes of a run: which one this is, and how all of them agree on values of the host.

The values are exchanged over a separate process group on gloo, so no device is read. This class
sends numbers and text, and ranks that write a checkpoint exchange nothing else. Only `gather_batch`
in `record/batch_dump.py`, which collects the batch of an incident, sends pickles over the group. A
single process is a world of one, which answers at once.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from surestep.engine.distributed.hang_monitor import HangMonitor
from surestep.engine.distributed.stop_signals import SIGNALS

PAUSES = (*SIGNALS, "pause", "max_time")  # what stops a run that can be resumed
WORKER_DIED = "a data worker died"  # on some rank: all of them save and stop at the same step
WORDS = ("stop", "save", "evaluate", WORKER_DIED, *PAUSES)


class Communicator:
    """The processes that share a step.

    Attributes:
        rank: of this process, from 0.
        size: number of processes.
        group: process group for values of the host; None in a world of one.
        background_group: another such group of the same ranks, for a second thread.
        monitor: the hang monitor; None in a world of one.
        store_barrier: called by the background thread before each exchange.
        n_collectives: how many exchanges this rank has begun.
        requests: what this rank requests from all.
        agreed: what some rank requested, at the last exchange.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, group: Any = None, background_group: Any = None
    ) -> None:
        self.rank = rank
        self.size = size
        self.group = group
        self.background_group = background_group
        self.monitor: HangMonitor | None = None
        self.store_barrier: Callable[[], None] | None = None
        self.n_collectives = 0
        self.requests: set[str] = set()
        self.agreed: set[str] = set()
        self._is_background = False
        self._is_leaving = threading.Event()
        self._began = time.monotonic()
        self._seconds = 0.0

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes, prints and tracks."""
        return self.rank == 0

    @property
    def background(self) -> "Communicator":
        """The same ranks, for one thread beside the one that trains."""
        world = Communicator(self.rank, self.size, self.background_group)
        world.store_barrier, world._is_background = self.store_barrier, True
        return world

    def leave_groups(self) -> None:
        """Close both process groups, which ends their threads; nothing is exchanged afterwards."""
        for group in filter(None, (self.group, self.background_group)):
            dist.destroy_process_group(group)
        self.group = self.background_group = None

    @property
    def is_failing(self) -> bool:
        """Whether this rank leaves by an error, or another one failed."""
        other_failed = self.monitor is not None and self.monitor.failure is not None
        return self._is_leaving.is_set() or other_failed

    @property
    def seconds(self) -> float:
        """The clock by which all ranks act: that of rank 0 at the last exchange.

        With separate clocks, ranks would save or log at different steps.
        """
        return time.monotonic() if self.size == 1 else self._seconds

    def exchange(self, values: Sequence[float]) -> list[float]:
        """Sum the values of all ranks; what one rank requests is then agreed on all of them."""
        clock = self._read_clock()
        # A signal may arrive at any of these lines: its request goes now or at the next exchange.
        requests, self.requests = self.requests, set()
        flags = [float(word in requests) for word in WORDS]
        self._seconds, *sums = self.all_reduce_sum([clock, *flags, *values])
        self.agreed = {word for word, n in zip(WORDS, sums, strict=False) if n}
        return sums[len(WORDS) :]

    def summarize(self) -> tuple[float, float]:
        """Return whether this rank requests something, as 1 or 0, and its part of the clock.

        The sums over all ranks go to `agree_by`: together the two replace an exchange. The clock
        ticks ten times a second, so that most steps send what the one before sent.
        """
        return float(bool(self.requests)), round(self._read_clock(), 1)

    def agree_by(self, requests: float, seconds: float) -> None:
        """Set the clock of all ranks; if there are requests, which is rare, exchange them now."""
        if requests:
            self.exchange(())
        else:
            self._seconds = max(self._seconds, seconds)  # an exchange does not round its clock

    def _read_clock(self) -> float:
        """Return the seconds since the start on rank 0, 0 on the others."""
        return time.monotonic() - self._began if self.is_first else 0.0

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Return the sum over ranks of each value."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        with self.explain_errors():
            dist.all_reduce(tensor, group=self.group)
        return list(tensor.tolist())

    def all_gather_text(self, text: str) -> list[str]:
        """Return the text of every rank, in the order of ranks."""
        if self.size == 1:
            return [text]
        data = text.encode()
        lengths = [0.0] * self.size
        lengths[self.rank] = len(data)
        sizes = list(map(int, self.all_reduce_sum(lengths)))
        own = torch.zeros(max(1, *sizes), dtype=torch.uint8)
        if data:
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        gathered = [torch.empty_like(own) for _ in sizes]
        with self.explain_errors():
            dist.all_gather(gathered, own, group=self.group)
        texts = zip(gathered, sizes, strict=True)
        return [text.numpy().tobytes()[:size].decode() for text, size in texts]

    def broadcast_json(self, value: Any) -> Any:
        """Return the value of rank 0, which JSON can hold."""
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
            if self._is_background and self.store_barrier is not None:
                self.store_barrier()
            yield
        except RuntimeError as error:
            explained = self.explain_error(error)
            if explained is error:
                raise
            raise explained from error

    def explain_error(self, error: Exception) -> Exception:
        """Return the error to raise for one that may be of the network."""
        return error if self.monitor is None else self.monitor.explain_error(error)

    def failed(self, error: BaseException | None) -> None:
        """Publish to the other ranks why this one ends, if it is an error."""
        if error is not None and self.size > 1:
            self._is_leaving.set()
        if self.monitor is not None and isinstance(error, Exception):
            self.monitor.failed(error)

    def long_timeout(self) -> AbstractContextManager[None]:
        """Return the context in which one rank may let the others wait long."""
        return nullcontext() if self.monitor is None else self.monitor.timeouts.long_timeout()


ALONE = Communicator()
