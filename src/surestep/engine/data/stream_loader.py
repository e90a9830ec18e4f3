"""A stream read pass by pass: cut into batches, by workers or without.

Each worker reads its own part and cuts it into whole batches, which come in turn. What is left of
the parts is put together and cut here, so that only the last batch of an epoch may be smaller.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from surestep.base.errors import DataError
from surestep.engine.data.failures import Failed, checked, name_samples
from surestep.engine.data.sources import WorkerInit, identity_collate
from surestep.engine.data.stream import StreamProbe, StreamReader, check_parts, empty_stream_error
from surestep.engine.data.stream_state import StreamCheckpoint, StreamStateTracker, WorkerProgress
from surestep.engine.data.workers import Loader
from surestep.engine.plan.batching import BatchLayout, positions_or_dummy
from surestep.engine.rng import clear_numpy_gauss_cache, preserve_rng

Collate = Callable[[list[Any]], Any]
Span = tuple[int, int]  # the first position and the end
_KEPT = 64  # marks


class RawMicroBatch(NamedTuple):
    """A micro-batch as read: collated, with its first position and its samples."""

    raw: Any
    position: int
    samples: int


class _WorkerBatch(NamedTuple):
    """The micro-batches of a whole batch, collated; empty where a run has seen them already.

    With what a run can go on from after it: the worker, and what it has read and its state.
    """

    raws: list[Any]
    worker: int
    read: int
    state: Any


class _SkippedBatch(NamedTuple):
    """The turn of a worker whose batch was consumed before the run went on."""

    worker: int


class _Remainder(NamedTuple):
    """The samples that are left of a worker's part, less than a batch."""

    worker: int
    samples: list[Any]


class _StreamWorker(IterableDataset[Any]):
    """A pass over a stream as one worker makes it.

    Attributes:
        place: epoch, start, and whether to go on from the mark.
        mark: where a run goes on by the stream's own state.
    """

    def __init__(
        self, reader: StreamReader, cut: BatchLayout, collate: Collate, *, marks: bool
    ) -> None:
        self.reader = reader
        self.dataset = reader.stream
        self.cut = cut
        self.collate = collate
        # In shared memory, since workers that stay alive would not see an attribute change.
        self.place = torch.zeros(3, dtype=torch.int64).share_memory_()
        self.mark: StreamCheckpoint | None = None
        self.marks = marks

    def __iter__(self) -> Iterator[_WorkerBatch | _SkippedBatch | _Remainder | Failed]:
        try:
            yield from self._read()
        except DataError as error:
            if get_worker_info() is None:
                raise
            yield Failed(str(error))

    def _read(self) -> Iterator[_WorkerBatch | _SkippedBatch | _Remainder]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch, start, goes_on = self.place.tolist()
        size, part = self.cut.batch_size, WorkerProgress()
        if goes_on and self.mark is not None:
            part = self.mark.parts[worker]
            if worker <= self.mark.last:  # the loader begins with the first: keep the turns
                yield _SkippedBatch(worker)
        own = StreamStateTracker(part)
        samples, read = self.reader.samples(epoch, worker, workers, own), part.read
        while True:
            with _guard():
                batch = list(islice(samples, size))
                if len(batch) < size:
                    break
                # At the latest in this turn; it comes earlier where other workers have ended.
                turn = read // size * workers + worker
                seen = (turn + 1) * size <= start or read < part.given
                first = read * workers + worker
                raws = [] if seen else self.collate_batch(batch, epoch, first, workers)
                read += size
                state = own.maybe_state_dict() if self.marks else None
            if read > part.given:
                yield _WorkerBatch(raws, worker, read, state)
        yield _Remainder(worker, batch)

    def collate_batch(
        self, samples: list[Any], epoch: int, first: int, workers: int = 1
    ) -> list[Any]:
        """Cut a batch into micro-batches, each collated under the seed of its first place."""
        raws = []
        for start, end in self.cut.micro_batches(0, len(samples)):
            self.reader.seed_place(epoch, first + start * workers)
            there = positions_or_dummy(range(start, end))
            there_samples = samples[there.start : there.stop]
            try:
                raws.append(self.collate(there_samples))
            except Exception as error:
                places = [first + each * workers for each in there]
                place = (epoch, places[0], places)
                raise name_samples(error, "stream", place, there_samples, self.collate) from error
        return raws


class StreamLoader:
    """A stream behind a DataLoader of our own.

    Args:
        reader: reads it.
        cut: how an epoch is cut; its samples are None where the stream does not say.
        part: what the data is called in messages.
        collate: how samples become a batch; torch's `default_collate` where None.
        options: of the DataLoader.
        marks: take the stream's own state along, so that a run can go on by it.

    Attributes:
        marks: the places that a run can go on from, the newest last.

    Raises:
        DataError: several workers would read the same, or one nothing.
    """

    def __init__(
        self,
        reader: StreamReader,
        cut: BatchLayout,
        *,
        part: str,
        collate: Collate | None,
        options: Mapping[str, Any],
        marks: bool = False,
    ) -> None:
        self.cut = cut
        self.part = part
        # A run that is not finite goes back to its last log point, or as near as is kept.
        self.marks: deque[StreamCheckpoint] = deque(maxlen=_KEPT)
        self.workers = max(1, options["num_workers"])
        self._pass = _StreamWorker(reader, cut, collate or default_collate, marks=marks)
        options = dict(options)
        start = WorkerInit(options.pop("worker_init_fn", None))

        def load(dataset: IterableDataset[Any], **others: Any) -> "DataLoader[Any]":
            return DataLoader(
                dataset,
                batch_size=None,
                collate_fn=identity_collate,
                worker_init_fn=start,
                generator=torch.Generator(),  # else iter() draws from the global generator
                **options | others,
            )

        if options["num_workers"] > 1:
            others = {"persistent_workers": False, "pin_memory": False}
            look = Loader(lambda: load(StreamProbe(reader), **others))
            check_parts(list(look), part)
            look.close()
        self._loader = Loader(lambda: load(self._pass))

    def batches(self, epoch: int, start: int) -> Iterator[tuple[list[RawMicroBatch], Span, bool]]:
        """Yield the micro-batches of each batch from `start` on, where it is, and if it is last.

        Of several ranks each reads all of the stream, and collates its own share of each batch.

        Raises:
            DataError: there is nothing in it, or not what it said, or less than was read before.
        """
        waiting: tuple[list[RawMicroBatch], Span] | None = None
        for batch in self._batches(epoch, start):
            if waiting is not None:
                yield *waiting, False
            waiting = batch
            if batch[1][1] == self.cut.most:  # the end of the last batch that is used
                break
        if waiting is not None:
            yield *waiting, True

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[list[RawMicroBatch], Span]]:
        size, rests = self.cut.batch_size, []  # type: int, list[_Remainder]
        mark = self._begin(epoch, start)
        position, parts = mark.position, list(mark.parts)
        for item in self._loader:
            clear_numpy_gauss_cache()  # as reading without workers does
            checked(item)
            if isinstance(item, _Remainder):
                rests.append(item)
            if not isinstance(item, _WorkerBatch):
                continue
            self._check_longer(position + size)
            if self._pass.marks:
                parts[item.worker] = _after(parts[item.worker], item)
                end = position + size
                self.marks.append(StreamCheckpoint(epoch, end, size, item.worker, tuple(parts)))
            if position >= start:
                yield self._pieces(item.raws, position, size)
            position += size
        rest = [sample for each in sorted(rests, key=_worker_of) for sample in each.samples]
        end = position + len(rest)
        self._check_longer(end)
        self._check_end(end, start)
        for first in range(position, end, size):
            batch = rest[first - position : first - position + size]
            if first >= start and not (self.cut.drop_last and len(batch) < size):
                with preserve_rng():
                    raws = self._pass.collate_batch(batch, epoch, first)
                yield self._pieces(raws, first, len(batch))

    def checkpoint_at(self, epoch: int, position: int) -> StreamCheckpoint | None:
        """Return the last mark up to a place of which something need not be read again."""
        fits = [
            each
            for each in self.marks
            if each.epoch == epoch
            and each.position <= position
            and each.size == self.cut.batch_size
            and len(each.parts) == self.workers
            and any(part.read for part in each.parts)
        ]
        return max(fits, key=attrgetter("position"), default=None)

    def _begin(self, epoch: int, start: int) -> StreamCheckpoint:
        """Tell the workers where to begin; return where that is."""
        mark = self.checkpoint_at(epoch, start)
        self._pass.place.copy_(torch.tensor([epoch, start, mark is not None]))
        if mark is None:
            return StreamCheckpoint(
                epoch, 0, self.cut.batch_size, -1, (WorkerProgress(),) * self.workers
            )
        self._pass.mark = mark
        self.close()  # workers that are alive do not see it
        return mark

    def _pieces(
        self, raws: list[Any], first: int, samples: int
    ) -> tuple[list[RawMicroBatch], Span]:
        span = (first, first + samples)
        cuts = self.cut.micro_batches(*span)
        return [RawMicroBatch(raw, a, b - a) for raw, (a, b) in zip(raws, cuts, strict=True)], span

    def _check_longer(self, read: int) -> None:
        if self.cut.samples is not None and read > self.cut.samples:
            raise DataError(
                f"The {self.part} stream says that it has {self.cut.samples} samples, and gives "
                f"more: {read} so far. {_LENGTH}"
            )

    def _check_end(self, end: int, start: int) -> None:
        if end == 0:
            raise empty_stream_error(self.part)
        if self.cut.samples is not None and end < self.cut.samples:
            raise DataError(
                f"The {self.part} stream says that it has {self.cut.samples} samples, and ended "
                f"after {end}. {_LENGTH}"
            )
        if end < start:
            raise DataError(
                f"The {self.part} stream ended after {end} samples, and this run has read {start} "
                "of this epoch before. Give it the same data."
            )
        if self.cut.drop_last and end < self.cut.batch_size:
            raise DataError(
                f"data.drop_last drops every batch: {end} samples are less than "
                f"batch_size={self.cut.batch_size}. Use a smaller batch_size or drop_last=False."
            )

    def close(self) -> None:
        """Let the workers go: persistent ones live as long as their DataLoader."""
        self._loader.close()


_LENGTH = "Correct its __len__; or take it away and say max_steps instead of epochs."


def _after(part: WorkerProgress, item: _WorkerBatch) -> WorkerProgress:
    """Return how far a worker is after a batch; it may have no newer state."""
    if item.state is None:
        return part._replace(given=item.read)
    return WorkerProgress(item.read, item.read, item.state)


def _worker_of(rest: _Remainder) -> int:
    return rest.worker


def _guard() -> AbstractContextManager[object]:
    """Keep this process's generators; in a worker nobody else draws."""
    return preserve_rng() if get_worker_info() is None else nullcontext()
