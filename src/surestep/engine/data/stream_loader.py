"""A stream read in passes and split into batches, with or without workers.

Each worker reads its shard and splits it into full batches, which alternate. The main process puts
the remainders of the shards together, so that only the last batch of an epoch may be smaller.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from surestep.base.errors import DataError
from surestep.base.warn import warn
from surestep.engine.data.collated import collate_counted
from surestep.engine.data.failures import Failed, checked, name_samples
from surestep.engine.data.sources import make_torch_loader
from surestep.engine.data.stream import (
    StreamProbe,
    StreamReader,
    check_shards,
    digest_ends,
    empty_stream_error,
)
from surestep.engine.data.stream_state import (
    BY_STATE,
    STREAM,
    StreamCheckpoint,
    StreamStateTracker,
    WorkerProgress,
    parse_stream_checkpoint,
)
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.plan.batching import BatchLayout, positions_or_dummy
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import clear_numpy_gauss_cache, preserve_rng
from surestep.engine.state.state import Progress, State, Stateful

Collate = Callable[[list[Any]], Any]
Span = tuple[int, int, bool, list[range]]  # first, end, is the last; positions by micro-batch
RawBatch = tuple[Span, Iterator[Any]]  # its micro-batches, as read
_DIGESTED = 2**14  # bytes of each tensor of a sample that are compared on resume
_END = "end"  # instead of the digest of a sample
_CHECKPOINTS = 64  # a rollback resumes from the nearest of the last so many


class _WorkerBatch(NamedTuple):
    """The collated micro-batches of a full batch (none if it was consumed), and the progress.

    `last` is a digest of its last sample. A resumed worker may first yield the last batch that was
    consumed, which is compared.
    """

    raws: list[Any]
    worker: int
    read: int
    state: Any
    last: str | None


class _Remainder(NamedTuple):
    """The last samples of a worker's shard, less than a batch, and a digest of the last."""

    worker: int
    samples: list[Any]
    last: str | None


class _StreamWorker(IterableDataset[Any]):
    """A pass over a stream as one worker makes it."""

    def __init__(
        self,
        reader: StreamReader,
        layout: BatchLayout,
        collate: Collate,
        *,
        saves_state: bool,
        records: bool,
        counts: bool,
    ) -> None:
        self.reader = reader
        self.dataset = reader.stream
        self.layout = layout
        self.collate = collate
        self.saves_state = saves_state
        self.records = records
        self.counts = counts
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
        replays = skips = False
        if resumes and self.checkpoint is not None:
            part = self.checkpoint.parts[worker]
            replays = self.checkpoint.replays and part.read < part.given
            skips = worker <= self.checkpoint.last  # its batch of this round was consumed before
            if self.checkpoint.replays and not replays:
                yield None
            if skips and not replays:
                yield None
        own = StreamStateTracker(part)
        samples, read = self.reader.samples(epoch, worker, workers, own), part.read
        while True:
            # In a worker nothing else draws.
            with preserve_rng() if info is None else nullcontext():
                batch = list(islice(samples, size))
                if len(batch) < size:
                    if replays and read < part.given:
                        yield _WorkerBatch([], worker, part.given, None, _END)
                    break
                # The batch's end at the latest; it is earlier if other workers have ended.
                end = (read // size * workers + worker + 1) * size
                consumed = end <= start or read < part.given
                first = read * workers + worker
                raws = [] if consumed else self.collate_batch(batch, epoch, first, workers)
                read += size
                state = own.maybe_state_dict() if self.saves_state else None
            if read > part.given:
                yield _WorkerBatch(raws, worker, read, state, self._digest(batch[-1]))
            elif replays and read == part.given:
                yield _WorkerBatch([], worker, read, None, self._digest(batch[-1]))
                if skips:
                    yield None
        yield _Remainder(worker, batch, self._digest(batch[-1]) if batch else _END)

    def _digest(self, sample: Any) -> str | None:
        return digest_ends(sample, _DIGESTED) if self.records else None

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
        collate = partial(collate_counted, self.collate) if self.counts else self.collate
        raw = collate(samples)
        if not self._own.has_new():
            return raw
        # A generator that this call created was not seeded for it.
        self._own.reseed(self.reader.seed_position(epoch, position))
        return collate(samples)


class StreamLoader:
    """Reads the batches of a stream, with or without workers.

    With `saves_state` it keeps the stream's own state, so that a run can resume by it. With
    `records` it keeps digests of samples, which a resumed run compares with what it reads. With
    `counts`, what `collate` makes is a CollatedBatch.
    `options` are those of the DataLoader.

    Attributes:
        checkpoints: the positions that a run can resume from, the newest last.
        may_differ: the user allowed that the samples differ from those so far.
        records: as given.
        collates: a function of the user makes each micro-batch of samples.
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
        records: bool = False,
        counts: bool = False,
    ) -> None:
        self.layout = layout
        self.part = part
        self.may_differ = False
        self.records = records
        self._expected: StreamCheckpoint | None = None  # what was read before this pass
        self.checkpoints: deque[StreamCheckpoint] = deque(maxlen=_CHECKPOINTS)
        self.workers = max(1, options["num_workers"])
        if options["num_workers"] > 1:
            once = {"batch_size": None, "persistent_workers": False, "pin_memory": False}
            probe = make_torch_loader(StreamProbe(reader), options, **once)
            check_shards(list(probe), part)
            probe.close()
        self.collates = collate not in (None, default_collate)
        self._pass = _StreamWorker(
            reader,
            layout,
            collate or default_collate,
            saves_state=saves_state,
            records=records,
            counts=counts,
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
        self._loader.end_outdated(self.part, epoch)
        position, parts = begun.position, list(begun.parts)
        for item in self._loader:
            clear_numpy_gauss_cache()  # as reading without workers does
            checked(item)
            if not isinstance(item, (_WorkerBatch, _Remainder)):
                continue
            if self.records:
                given = parts[item.worker].given
                is_again = isinstance(item, _WorkerBatch) and item.read <= given
                if not is_again:
                    self._note_following(epoch, item.worker, given, item.last)
                if self._expected and _differs(self._expected.parts[item.worker], item, given):
                    if any(part.read for part in begun.parts):
                        self._forget_states()
                        yield from self._batches(epoch, max(start, position))
                        return
                    self._report_other_samples()
                if is_again:
                    continue
            if isinstance(item, _Remainder):
                remainders.append(item)
                continue
            end = position + size
            self._check_length(end, has_ended=False)
            if self.records:
                part = parts[item.worker]
                saved = (part.read, part.state) if item.state is None else (item.read, item.state)
                parts[item.worker] = WorkerProgress(item.read, *saved, item.last)
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

    def _note_following(self, epoch: int, worker: int, given: int, last: str | None) -> None:
        """Add the digest of a worker's next batch to the checkpoints after which it comes."""
        for index in range(len(self.checkpoints) - 1, -1, -1):
            found = self.checkpoints[index]
            if found.epoch != epoch or found.parts[worker].given != given:
                return
            parts = list(found.parts)
            parts[worker] = parts[worker]._replace(following=last)
            self.checkpoints[index] = found._replace(parts=tuple(parts))

    def _forget_states(self) -> None:
        """Read the epoch again from its start, since what follows a state is not what followed."""
        expected = cast(StreamCheckpoint, self._expected)
        self.checkpoints.clear()
        parts = tuple(part._replace(read=0, state=None) for part in expected.parts)
        self.checkpoints.append(expected._replace(parts=parts))
        self.close()
        warn(
            f"After loading its own state of {expected.position:,} samples, the {self.part} stream "
            "continues with other samples than this run read before, so the samples of this epoch "
            "are read again instead. Correct its state_dict() and load_state_dict(): a state must "
            "be that of the last sample, also after a state was loaded."
        )

    def _report_other_samples(self) -> None:
        expected, self._expected = cast(StreamCheckpoint, self._expected), None
        what = (
            f"The {self.part} stream gives other samples before or at position "
            f"{expected.position:,} of epoch {expected.epoch + 1} than this run read there"
        )
        if not self.may_differ:
            raise DataError(
                f"{what}, so the run cannot resume exactly. Give it the same data, in an order "
                "that depends on the epoch alone; or start another run from the last checkpoint of "
                "this one: from_='RUN@last'."
            )
        warn(f"{what}. The run continues with them, since you allowed what differs.")

    def checkpoint_at(
        self, epoch: int, position: int, *, with_state: bool = True
    ) -> StreamCheckpoint | None:
        """Return the last checkpoint up to a position, one that saves reading something again.

        Without `with_state`, it may be one that has only digests.
        """
        usable = [
            one
            for one in self.checkpoints
            if one.epoch == epoch
            and one.position <= position
            and one.size == self.layout.batch_size
            and len(one.parts) == self.workers
            and (not with_state or any(part.read for part in one.parts))
        ]
        found = max(usable, key=attrgetter("position"), default=None)
        return self._to_compare(found) if found is not None and with_state else found

    def _to_compare(self, found: StreamCheckpoint) -> StreamCheckpoint:
        """Return it with the state before a worker's last batch where its next one was not read.

        Without a digest of the next batch, a resumed run compares the last one.
        """
        parts = list(found.parts)
        for worker, part in enumerate(parts):
            if part.following is None and part.last is not None and part.read == part.given:
                before = max(
                    (
                        one.parts[worker]
                        for one in self.checkpoints
                        if one.epoch == found.epoch and one.parts[worker].given < part.given
                    ),
                    key=attrgetter("given"),
                    default=WorkerProgress(),
                )
                parts[worker] = part._replace(read=before.read, state=before.state)
        return found._replace(parts=tuple(parts))

    def _begin(self, epoch: int, start: int) -> StreamCheckpoint:
        """Set where the workers begin, and return it."""
        found = self.checkpoint_at(epoch, start)
        self._expected = found or self.checkpoint_at(epoch, start, with_state=False)
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

    def split_into(self, size: int) -> None:
        """Split each batch into micro-batches of this size, from the next read on."""
        self.layout = self._pass.layout = self.layout._replace(micro_batch_size=size)
        self.close()  # workers that are alive have the layout of before

    def close(self) -> None:
        """End the workers."""
        self._loader.close()


def _differs(saved: WorkerProgress, item: _WorkerBatch | _Remainder, given: int) -> bool:
    """Return whether a worker read other samples than are recorded, after `given` samples."""
    if isinstance(item, _WorkerBatch) and item.read == saved.given:
        return saved.last not in (None, item.last)
    return given == saved.given and saved.following not in (None, item.last)


class _StreamCheckpointState:
    """What a checkpoint holds of a stream: its state at what was consumed, not at what was read."""

    def __init__(self, stream: StreamLoader, state: State) -> None:
        self.stream = stream
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's checkpoint; nothing at the beginning of an epoch."""
        place = self.state.progress.epoch, self.state.progress.position
        found = self.stream.checkpoint_at(*place)
        found = found or self.stream.checkpoint_at(*place, with_state=False)
        return {} if found is None else found.as_json()

    def load_state_dict(self, saved: Any) -> None:
        """Have the stream resume from a saved checkpoint."""
        found = parse_stream_checkpoint(saved)
        self.stream.checkpoints.clear()
        if found is not None:
            self.stream.checkpoints.append(found)


def checkpoint_state(source: object, state: State) -> dict[str, Stateful]:
    """Return what a checkpoint holds of the training data, by name."""
    if not isinstance(source, StreamLoader):
        return {}
    return {STREAM: _StreamCheckpointState(source, state)}


def describe_resume(source: object, plan: Plan, progress: Progress) -> str:
    """Return how a stream resumes, and what it reads again; "" for data with positions."""
    if not isinstance(source, StreamLoader) or not progress.position:
        return ""
    place = progress.epoch, progress.position
    found = source.checkpoint_at(*place)
    if found is None:
        why = plan.reason("data.resume")
        if plan.data_resume == BY_STATE:
            why = "the checkpoint has no state of it that fits"
        text = f", reading {progress.position:,} samples of the stream again: {why}"
        found = source.checkpoint_at(*place, with_state=False)
    else:
        again = found.again + progress.position - found.position
        also = f", reading {again:,} samples again" if again else ""
        text = f", the stream by its own state{also}"
    compares = found is not None and any(part.last or part.following for part in found.parts)
    if compares or not source.records:
        return text
    return f"{text} (not compared with what was read before: the checkpoint has no digest of it)"
