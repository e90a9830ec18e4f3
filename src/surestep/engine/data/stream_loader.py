"""A stream read in passes and split into batches, with or without workers.

Each worker reads its shard and splits it into full batches, which alternate. The main process puts
the remainders of the shards together, so that only the last batch of an epoch may be smaller.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from surestep.base.errors import DataError
from surestep.engine.data.failures import Failed, checked, name_samples
from surestep.engine.data.sources import make_torch_loader
from surestep.engine.data.stream import StreamProbe, StreamReader, check_shards, empty_stream_error
from surestep.engine.data.stream_state import (
    BY_STATE,
    STREAM,
    StreamCheckpoint,
    StreamStateTracker,
    WorkerProgress,
    parse_stream_checkpoint,
)
from surestep.engine.data.worker_copies import warn_of_change
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.plan.batching import BatchLayout, positions_or_dummy
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import clear_numpy_gauss_cache, preserve_rng
from surestep.engine.state.state import Progress, State, Stateful

Collate = Callable[[list[Any]], Any]
Span = tuple[int, int, bool, list[range]]  # first, end, is the last; positions by micro-batch
RawBatch = tuple[Span, Iterator[Any]]  # its micro-batches, as read
_CHECKPOINTS = 64  # a rollback resumes from the nearest of the last so many


class _WorkerBatch(NamedTuple):
    """The collated micro-batches of a full batch (none if it was consumed), and the progress."""

    raws: list[Any]
    worker: int
    read: int
    state: Any


class _Remainder(NamedTuple):
    """The last samples of a worker's shard, less than a batch."""

    worker: int
    samples: list[Any]


class _StreamWorker(IterableDataset[Any]):
    """A pass over a stream as one worker makes it."""

    def __init__(
        self, reader: StreamReader, layout: BatchLayout, collate: Collate, *, saves_state: bool
    ) -> None:
        self.reader = reader
        self.dataset = reader.stream
        self.layout = layout
        self.collate = collate
        self.saves_state = saves_state
        # (epoch, start, whether to use the checkpoint), in shared memory: persistent workers would
        # not see a new attribute.
        self.request = torch.zeros(3, dtype=torch.int64).share_memory_()
        self.checkpoint: StreamCheckpoint | None = None
        self._own: OwnGenerators | None = None  # searched for in the process that collates

    def __iter__(self) -> Iterator[_WorkerBatch | _Remainder | Failed | None]:
        try:
            yield from self._read()
        except DataError as error:
            if get_worker_info() is None:
                raise
            yield Failed(str(error))

    def _read(self) -> Iterator[_WorkerBatch | _Remainder | None]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch, start, resumes = self.request.tolist()
        size, part = self.layout.batch_size, WorkerProgress()
        if resumes and self.checkpoint is not None:
            part = self.checkpoint.parts[worker]
            if worker <= self.checkpoint.last:  # its batch of this round was consumed before
                yield None
        own = StreamStateTracker(part)
        samples, read = self.reader.samples(epoch, worker, workers, own), part.read
        while True:
            # In a worker nothing else draws.
            with preserve_rng() if info is None else nullcontext():
                batch = list(islice(samples, size))
                if len(batch) < size:
                    break
                # The batch's end at the latest; it is earlier if other workers have ended.
                end = (read // size * workers + worker + 1) * size
                consumed = end <= start or read < part.given
                first = read * workers + worker
                raws = [] if consumed else self.collate_batch(batch, epoch, first, workers)
                read += size
                state = own.maybe_state_dict() if self.saves_state else None
            if read > part.given:
                yield _WorkerBatch(raws, worker, read, state)
        yield _Remainder(worker, batch)

    def collate_batch(
        self, samples: list[Any], epoch: int, first: int, workers: int = 1
    ) -> list[Any]:
        """Split a batch into micro-batches, each collated under the seed of its first position."""
        raws = []
        for start, end in self.layout.micro_batches(0, len(samples)):
            where = positions_or_dummy(range(start, end))
            chosen = samples[where.start : where.stop]
            position = first + start * workers
            try:
                raws.append(self._collate(chosen, epoch, position))
            except Exception as error:
                positions = [first + index * workers for index in where]
                found = (epoch, positions[0], positions)
                raise name_samples(error, "stream", found, chosen, self.collate) from error
        return raws

    def _collate(self, samples: list[Any], epoch: int, position: int) -> Any:
        if self._own is None:
            self._own = OwnGenerators(("collate_fn", self.collate))
        self._own.reseed(self.reader.seed_position(epoch, position))
        raw = self.collate(samples)
        if not self._own.has_new():
            return raw
        # A generator that this call created was not seeded for it.
        self._own.reseed(self.reader.seed_position(epoch, position))
        return self.collate(samples)


class StreamLoader:
    """Reads the batches of a stream, with or without workers.

    With `saves_state` it keeps the stream's own state, so that a run can resume by it. `options`
    are those of the DataLoader.

    Attributes:
        checkpoints: the positions that a run can resume from, the newest last.
    """

    def __init__(
        self,
        reader: StreamReader,
        layout: BatchLayout,
        *,
        part: str,
        collate: Collate | None,
        options: Mapping[str, Any],
        saves_state: bool = False,
    ) -> None:
        self.layout = layout
        self.part = part
        self.checkpoints: deque[StreamCheckpoint] = deque(maxlen=_CHECKPOINTS)
        self.workers = max(1, options["num_workers"])
        if options["num_workers"] > 1:
            once = {"batch_size": None, "persistent_workers": False, "pin_memory": False}
            probe = make_torch_loader(StreamProbe(reader), options, **once)
            check_shards(list(probe), part)
            probe.close()
        self._pass = _StreamWorker(
            reader, layout, collate or default_collate, saves_state=saves_state
        )
        self._loader = make_torch_loader(self._pass, options, batch_size=None)

    def batches(self, epoch: int, start: int) -> Iterator[RawBatch]:
        """Yield the span of each batch from position `start` on, with its micro-batches.

        Each of several ranks reads all of the stream, and collates its share of each batch.
        """
        waiting: tuple[list[Any], int, int] | None = None
        for batch in self._batches(epoch, start):
            if waiting is not None:
                yield self._as_raw(*waiting, is_last=False)
            waiting = batch
            if batch[2] == self.layout.most:  # the end of the last batch that is used
                break
        if waiting is not None:
            yield self._as_raw(*waiting, is_last=True)

    def _as_raw(self, raws: list[Any], first: int, end: int, *, is_last: bool) -> RawBatch:
        ranges = [range(*span) for span in self.layout.micro_batches(first, end)]
        return (first, end, is_last, ranges), iter(raws)

    def _batches(self, epoch: int, start: int) -> Iterator[tuple[list[Any], int, int]]:
        """Yield the micro-batches of each batch, its first position and its end."""
        size, remainders = self.layout.batch_size, list[_Remainder]()
        begun = self._begin(epoch, start)
        if change := self._loader.end_outdated():
            warn_of_change(change, self.part, epoch, self._loader.start_method)
        position, parts = begun.position, list(begun.parts)
        for item in self._loader:
            clear_numpy_gauss_cache()  # as reading without workers does
            checked(item)
            if isinstance(item, _Remainder):
                remainders.append(item)
            if not isinstance(item, _WorkerBatch):
                continue
            end = position + size
            self._check_length(end, has_ended=False)
            if self._pass.saves_state:
                part = parts[item.worker]._replace(given=item.read)
                if item.state is not None:
                    part = WorkerProgress(item.read, item.read, item.state)
                parts[item.worker] = part
                checkpoint = StreamCheckpoint(epoch, end, size, item.worker, tuple(parts))
                self.checkpoints.append(checkpoint)
            if position >= start:
                yield item.raws, position, end
            position = end
        remainders.sort(key=attrgetter("worker"))
        rest = [sample for remainder in remainders for sample in remainder.samples]
        end = position + len(rest)
        self._check_end(end, start)
        for first in range(position, end, size):
            batch = rest[first - position : first - position + size]
            if first >= start and not (self.layout.drop_last and len(batch) < size):
                with preserve_rng():
                    raws = self._pass.collate_batch(batch, epoch, first)
                yield raws, first, first + len(batch)

    def checkpoint_at(self, epoch: int, position: int) -> StreamCheckpoint | None:
        """Return the last checkpoint up to a position that saves reading something again."""
        usable = [
            one
            for one in self.checkpoints
            if one.epoch == epoch
            and one.position <= position
            and one.size == self.layout.batch_size
            and len(one.parts) == self.workers
            and any(part.read for part in one.parts)
        ]
        return max(usable, key=attrgetter("position"), default=None)

    def _begin(self, epoch: int, start: int) -> StreamCheckpoint:
        """Set where the workers begin, and return it."""
        found = self.checkpoint_at(epoch, start)
        self._pass.request.copy_(torch.tensor([epoch, start, found is not None]))
        if found is None:
            parts = (WorkerProgress(),) * self.workers
            return StreamCheckpoint(epoch, 0, self.layout.batch_size, -1, parts)
        self._pass.checkpoint = found
        self.close()  # workers that are alive do not see it
        return found

    def _check_length(self, read: int, *, has_ended: bool) -> None:
        length = self.layout.samples
        if length is not None and (read > length or (has_ended and read < length)):
            how = "gives at least" if read > length else "ended after"
            raise DataError(
                f"The {self.part} stream has a __len__ of {length} samples, and {how} {read}."
                " Correct its __len__; or remove it and set max_steps instead of epochs."
            )

    def _check_end(self, end: int, start: int) -> None:
        if end == 0:
            raise empty_stream_error(self.part)
        self._check_length(end, has_ended=True)
        if end < start:
            raise DataError(
                f"The {self.part} stream ended after {end} samples, and this run has read {start} "
                "of this epoch before. Give it the same data."
            )
        if self.layout.drop_last and end < self.layout.batch_size:
            raise DataError(
                f"data.drop_last drops every batch: {end} samples are less than "
                f"batch_size={self.layout.batch_size}. Use a smaller batch_size or drop_last=False."
            )

    def close(self) -> None:
        """End the workers."""
        self._loader.close()


class _StreamCheckpointState:
    """What a checkpoint holds of a stream: its state at what was consumed, not at what was read."""

    def __init__(self, stream: StreamLoader, state: State) -> None:
        self.stream = stream
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's checkpoint; nothing at the beginning of an epoch."""
        progress = self.state.progress
        found = self.stream.checkpoint_at(progress.epoch, progress.position)
        return {} if found is None else found.as_json()

    def load_state_dict(self, saved: Any) -> None:
        """Have the stream resume from a saved checkpoint."""
        found = parse_stream_checkpoint(saved)
        self.stream.checkpoints.clear()
        if found is not None:
            self.stream.checkpoints.append(found)


def checkpoint_state(source: object, plan: Plan, state: State) -> dict[str, Stateful]:
    """Return what a checkpoint holds of the training data, by name."""
    if not isinstance(source, StreamLoader) or plan.data_resume != BY_STATE:
        return {}
    return {STREAM: _StreamCheckpointState(source, state)}


def describe_resume(source: object, plan: Plan, progress: Progress) -> str:
    """Return how a stream resumes, and what it reads again; "" for data with positions."""
    if not isinstance(source, StreamLoader) or not progress.position:
        return ""
    found = source.checkpoint_at(progress.epoch, progress.position)
    if found is None:
        why = plan.reason("data.resume")
        if plan.data_resume == BY_STATE:
            why = "the checkpoint has no state of it that fits"
        return f", reading {progress.position:,} samples of the stream again: {why}"
    again = found.again + progress.position - found.position
    also = f", reading {again:,} samples again" if again else ""
    return f", the stream by its own state{also}"
