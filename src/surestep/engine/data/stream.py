"""Streams: data that is read in order and has no positions.

A stream is a torch `IterableDataset`, any other object whose `__iter__` starts from the beginning,
or a function that returns an iterable; it takes no argument or the epoch. One pass is an epoch.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from surestep.base.errors import DataError
from surestep.engine.data.columns import as_argument
from surestep.engine.data.failures import name_stream
from surestep.engine.data.stream_state import (
    StreamStateTracker,
    WorkerProgress,
    copy_stream,
    encode_state,
    has_state,
)
from surestep.engine.rng import derive_seed, preserve_rng, seed_loading, seed_sample

PROBED = 16  # samples: two reads, or two workers, that agree on so many agree


def is_stream(data: Any) -> bool:
    """Return whether data, or the dataset of a DataLoader, is read in order without positions."""
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset):
        return True
    has_positions = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return not has_positions and (hasattr(dataset, "__iter__") or inspect.isroutine(dataset))


def check_restarts(stream: Any, part: str) -> None:
    """Check that a stream can be read more than once."""
    if not hasattr(stream, "__iter__"):
        return
    if hasattr(stream, "__next__") or iter(stream) is iter(stream):
        raise DataError(
            f"The {part} data is a {type(stream).__name__}, which has one iterator and so can be "
            "read only once at a time. Give a function that makes it again: "
            f"{as_argument(part, 'lambda: make_samples()')}."
        )


def length_of(stream: Any) -> int | None:
    """Return the length that a stream reports, or None."""
    try:
        return len(stream)
    except (TypeError, NotImplementedError):  # no __len__, or one for subclasses to implement
        return None


@dataclass(frozen=True)
class StreamReader:
    """Reads a stream from its start, each sample under the seed of its position.

    The position is the sample's number in the stream; with several workers, the numbers of their
    shards are interleaved.
    """

    stream: Any
    seed: int  # of the run
    split: str
    buffer: int | None = None  # samples in the shuffle buffer; None keeps the order
    counts: bool = False  # batches that a DataLoader makes are each a CollatedBatch

    def samples(
        self, epoch: int, worker: int = 0, workers: int = 1, own: StreamStateTracker | None = None
    ) -> Iterator[Any]:
        """Yield the samples that this process gets; use it within `preserve_rng`.

        `own` tracks the stream's state in this pass.
        """
        found = self._in_order(epoch, worker, workers, own or StreamStateTracker())
        if self.buffer is None:
            return found
        return _shuffled(found, self.buffer, derive_seed("buffer", self.seed, epoch, worker))

    def seed_position(self, epoch: int, position: int) -> int:
        """Seed what the sample at a position may draw; return torch's seed."""
        seed = derive_seed("load", self.seed, epoch, position, self.split)
        seed_sample(seed)
        return seed

    def _in_order(
        self, epoch: int, worker: int, workers: int, own: StreamStateTracker
    ) -> Iterator[Any]:
        seed_sample(derive_seed("stream", self.seed, epoch, worker, self.split))
        with _reading(self.stream, epoch):
            samples = own.start(self.stream, epoch, counts=self.counts)
            position = worker + own.read * workers
            while True:
                self.seed_position(epoch, position)
                try:
                    sample = next(samples)
                except StopIteration:
                    return
                except Exception as error:
                    raise name_stream(error, epoch, position) from error
                yield sample
                position += workers


_READING: list[tuple[Any, int]] = []  # the streams that this process reads, with their epochs


@contextmanager
def _reading(stream: Any, epoch: int) -> Iterator[None]:
    """Note that a stream is read; at the end, set again the epoch of a pass that continues.

    An evaluation on the training data interrupts a pass over the same stream.
    """
    _READING.append(own := (stream, epoch))
    try:
        yield
    finally:
        before = [entry for entry in _READING if entry[0] is stream]
        _READING[:] = [entry for entry in _READING if entry is not own]
        set_epoch = getattr(stream, "set_epoch", None)
        # One with a state was copied for the pass.
        if callable(set_epoch) and not has_state(stream) and len(before) > 1 and before[-1] is own:
            set_epoch(before[-2][1])


def _shuffled(samples: Iterator[Any], size: int, seed: int) -> Iterator[Any]:
    """Yield samples drawn from a buffer that is refilled; a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    buffer: list[Any] = []
    for sample in samples:
        if len(buffer) < size:
            buffer.append(sample)
            continue
        chosen = int(torch.randint(size, (), generator=generator))
        drawn, buffer[chosen] = buffer[chosen], sample
        yield drawn
    for chosen in torch.randperm(len(buffer), generator=generator).tolist():
        yield buffer[chosen]


def peek(stream: Any, samples: int) -> list[Any]:
    """Return at most the first samples of the first epoch."""
    with preserve_rng():
        return list(islice(StreamReader(stream, 0, "train").samples(0), samples))


def empty_stream_error(part: str) -> DataError:
    """Return the error for a stream that gave no sample."""
    return DataError(
        f"The {part} stream is empty: it gave no sample. Check the path that it reads and the "
        "filters that are applied."
    )


def check_repeats(reader: StreamReader, part: str) -> None:
    """Read the first samples twice and compare: otherwise a run could not resume exactly."""
    with preserve_rng():
        first, again = _digests(reader.samples(0)), _digests(reader.samples(0))
    if not first:
        raise empty_stream_error(part)
    if first != again:
        raise DataError(
            f"The {part} stream begins with different samples each time it is read, with torch, "
            "numpy and random seeded the same, so a run could not resume exactly. Give a function "
            "that makes it with seeds from the epoch "
            f"({as_argument(part, 'lambda epoch: make_stream(seed=epoch)')}), "
            "or use data.shuffle_buffer=1000 to shuffle."
        )


def check_shards(shards: list[list[str]], part: str) -> None:
    """Compare the digests of what each worker reads first: each must have its own shard."""
    workers, used = len(shards), sum(map(bool, shards))
    if len({tuple(shard) for shard in shards if shard}) < used:
        raise DataError(
            f"data.num_workers={workers}, but several of these workers read the same samples of "
            f"the {part} stream, which would train on each more than once. Let each take its own "
            "shard in __iter__: info = torch.utils.data.get_worker_info(), and yield sample i only "
            "if i % info.num_workers == info.id. Or use data.num_workers=1."
        )
    if used < workers:
        raise DataError(
            f"data.num_workers={workers}, but only {used} of them have anything to read in the "
            f"{part} stream: it has too few shards. Use data.num_workers={max(1, used)}, or split "
            "it into more."
        )


def fingerprint(reader: StreamReader, count: int = PROBED) -> str:
    """Return a digest of the first samples, by which processes compare their streams."""
    with preserve_rng():
        return digest(_digests(reader.samples(0), count))


class StreamProbe(IterableDataset[Any]):
    """Yields the digests of what a worker reads first."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        self.dataset = reader.stream

    def __iter__(self) -> Iterator[list[str]]:
        yield _digests(self.reader.samples(0))


def _digests(samples: Iterator[Any], count: int = PROBED) -> list[str]:
    return [digest(sample) for sample in islice(samples, count)]


def digest(sample: Any) -> str:
    """Return a digest of a nested sample; of an object of an unknown type, only its type."""
    state = blake2b(digest_size=16)
    _update(state.update, sample)
    return state.hexdigest()


def digest_ends(sample: Any, most: int) -> str | None:
    """Return a digest of a nested sample, with few bytes of large arrays.

    Args:
        sample: as for `digest`.
        most: bytes of each tensor, array and text that are used, the first and the last ones.

    Returns:
        None if nothing of the sample can be compared.
    """
    state = blake2b(digest_size=16)

    def update(content: Any) -> None:
        half = most // 2
        parts = (content,) if len(content) <= 2 * half else (content[:half], content[-half:])
        for part in parts:
            state.update(part)

    return state.hexdigest() if _update(update, sample) else None


def _update(update: Callable[[Any], object], value: Any) -> bool:
    """Update a digest with a nested value; return whether more than types can be compared."""
    update(f"{type(value).__name__} ".encode())
    if isinstance(value, Tensor) and value.layout is torch.strided:
        update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        is_known = False
        for key, member in value.items():
            if str(key).startswith("__"):  # WebDataset's name of the file of a sample
                continue
            _update(update, key)
            is_known |= _update(update, member)
        return is_known
    elif isinstance(value, (list, tuple)):
        return sum(_update(update, member) for member in value) > 0
    elif isinstance(value, bytes):
        update(value)
    elif isinstance(value, (str, int, float, complex)):
        update(repr(value).encode())
    elif hasattr(value, "tobytes"):  # arrays of numpy, images
        update(value.tobytes())
    else:
        return value is None
    return True


def find_state_problem(stream: Any) -> str:
    """Return why a stream cannot resume by its own state; "" if none is found.

    What follows some samples is compared with what follows after loading the state there, and after
    loading one that was saved after that.
    """
    half, reader, own = PROBED // 2, StreamReader(stream, 0, "train"), StreamStateTracker()
    tried = "reading its first samples"

    def save(tracker: StreamStateTracker, read: int) -> WorkerProgress:
        nonlocal tried
        tried = f"state_dict() of {name}"
        saved = WorkerProgress(read, read, encode_state(tracker.owner.state_dict()))
        tried = f"load_state_dict() of {name}"  # comes next
        return saved

    with preserve_rng():
        try:
            seed_loading(derive_seed("check", 0))
            own.start(stream, 0)
            if own.owner is None:
                return "it has no state_dict() and load_state_dict()"
            tried = "copying it, since a state is loaded into a copy,"
            copy_stream(stream)
            tried = "reading its first samples"
            samples = reader.samples(0, own=own)
            before = len(list(islice(samples, half)))
            name = type(own.owner).__name__
            first = save(own, before)
            after = _digests(samples, half)
            if _digests(reader.samples(0, own=StreamStateTracker(first)), half) != after:
                return f"after loading its state of {before} samples, {name} continues with others"
            again = StreamStateTracker(first)  # as of a run that is resumed twice
            some = len(list(islice(reader.samples(0, own=again), half // 2)))
            second = StreamStateTracker(save(again, before + some))
            if _digests(reader.samples(0, own=second), half // 2) != after[some:]:
                return (
                    f"{name} continues with others after loading a state that it saved after "
                    f"loading its state of {before} samples"
                )
        except Exception as error:  # of the user's code
            return f"{tried} failed: {error!r}"
    return ""
