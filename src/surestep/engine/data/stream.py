"""Streams: data that is read in order and has no positions.

A stream is a torch `IterableDataset`, any other object whose `__iter__` starts anew, or a function
that returns what to iterate, of nothing or of the epoch. One pass over it is an epoch.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from surestep.base.errors import DataError
from surestep.engine.data.failures import name_stream
from surestep.engine.data.stream_state import StreamStateTracker
from surestep.engine.rng import derive_load_seed, derive_seed, preserve_rng, seed_loading

LOOKED_AT = 16  # samples: two reads, or two workers, that agree on so many agree


def is_stream(data: Any) -> bool:
    """Say whether data, or what a DataLoader is over, is read in order and has no positions."""
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset):
        return True
    placed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return not placed and (hasattr(dataset, "__iter__") or inspect.isroutine(dataset))


def stream_in(data: Any, part: str) -> Any:
    """Return the stream in `data`, which may be a DataLoader.

    Raises:
        DataError: it can be read only once.
    """
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if not hasattr(dataset, "__iter__"):
        return dataset
    kind = type(dataset).__name__
    # The second of two readers of one iterator would take samples away from the first.
    if hasattr(dataset, "__next__") or iter(dataset) is iter(dataset):
        raise DataError(
            f"The {part} data is a {kind}, which has one iterator and so can be read only once at "
            f"a time. Give a function that makes it anew: {part}=lambda: make_samples()."
        )
    return dataset


def length_of(stream: Any) -> int | None:
    """Return how many samples a stream says it has, or None."""
    if not hasattr(stream, "__len__"):
        return None
    try:
        return len(stream)
    except (TypeError, NotImplementedError):  # inherited, for others to fill in
        return None


@dataclass(frozen=True)
class StreamReader:
    """Reads a stream from its start, under seeds of place.

    Before a sample is asked for, what it may draw is seeded from (seed, epoch, place); its place
    is its number in the stream, or with several workers in the worker's part, interleaved.

    Attributes:
        stream: what is read.
        seed: of the run.
        buffer: samples that wait in a shuffle buffer; None keeps the order.
    """

    stream: Any
    seed: int
    buffer: int | None = None

    def samples(
        self, epoch: int, worker: int = 0, workers: int = 1, own: StreamStateTracker | None = None
    ) -> Iterator[Any]:
        """Yield the samples that this process gets; to be read under LoadingRandomness.

        Args:
            epoch: of the pass.
            worker: which of them this process is.
            workers: how many there are.
            own: the stream's state in this pass, for who wants to take it or go on from one.
        """
        found = self._in_order(epoch, worker, workers, own or StreamStateTracker())
        if self.buffer is None:
            return found
        return _shuffled(found, self.buffer, derive_seed("buffer", self.seed, epoch, worker))

    def seed_place(self, epoch: int, place: int) -> None:
        """Seed what the sample at a place may draw."""
        seed_loading(derive_load_seed(self.seed, epoch, place))

    def _in_order(
        self, epoch: int, worker: int, workers: int, own: StreamStateTracker
    ) -> Iterator[Any]:
        seed_loading(derive_seed("stream", self.seed, epoch, worker))
        samples = own.start(self.stream, epoch)
        place = worker + own.read * workers  # a sample's number stays its own
        while True:
            self.seed_place(epoch, place)
            try:
                sample = next(samples)
            except StopIteration:
                return
            except Exception as error:
                raise name_stream(error, epoch, place) from error
            yield sample
            place += workers


def _shuffled(samples: Iterator[Any], size: int, seed: int) -> Iterator[Any]:
    """Yield samples drawn from a buffer that is filled up from behind; a function of the seed."""
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
    """Return the first samples of the first epoch; fewer if there are fewer."""
    with preserve_rng():
        return list(islice(StreamReader(stream, seed=0).samples(0), samples))


def empty_stream_error(part: str) -> DataError:
    """Return the error for a stream that gave no sample."""
    return DataError(f"The {part} stream is empty: it gave no sample.")


def check_repeats(reader: StreamReader, part: str) -> None:
    """Read the first samples twice and compare: a run could not go on exactly otherwise.

    Raises:
        DataError: they differ, or there are none.
    """
    with preserve_rng():
        first, again = (_digests(reader) for _ in range(2))
    if not first:
        raise empty_stream_error(part)
    if first != again:
        raise DataError(
            f"The {part} stream begins with other samples each time it is read, though torch, "
            "numpy and random were seeded alike, so a run could not go on exactly where it "
            f"stopped. Give a function that makes it with seeds from the epoch ({part}=lambda "
            "epoch: make_stream(seed=epoch)), or let data.shuffle_buffer=1000 do its shuffling."
        )


def check_parts(parts: list[list[str]], part: str) -> None:
    """Compare the digests of what each worker reads first: each must have its own part.

    Raises:
        DataError: two read the same, or one has nothing to read.
    """
    workers = len(parts)
    if len({tuple(each) for each in parts if each}) < sum(map(bool, parts)):
        raise DataError(
            f"data.num_workers={workers}, but several of these workers read the same samples of "
            f"the {part} stream, which would train on each more than once. Let each take its own "
            "part in __iter__: info = torch.utils.data.get_worker_info(), and yield sample i only "
            "where i % info.num_workers == info.id. Or say data.num_workers=1."
        )
    if not all(parts):
        raise DataError(
            f"data.num_workers={workers}, but only {sum(map(bool, parts))} of them have anything "
            f"to read in the {part} stream: it has too few shards. Say data.num_workers="
            f"{max(1, sum(map(bool, parts)))}, or cut it into more."
        )


def fingerprint(reader: StreamReader) -> str:
    """Return a digest of the first samples, by which a process knows the stream of another."""
    with preserve_rng():
        return digest(_digests(reader))


class StreamProbe(IterableDataset[Any]):
    """What a worker reads first, as digests; each under the same seeds."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        self.dataset = reader.stream

    def __iter__(self) -> Iterator[list[str]]:
        yield _digests(self.reader)


def _digests(reader: StreamReader) -> list[str]:
    return [digest(sample) for sample in islice(reader.samples(0), LOOKED_AT)]


def digest(sample: Any) -> str:
    """Return a digest of a nested sample; of an object of an unknown kind, of its kind."""
    state = blake2b(digest_size=16)
    _update(state.update, sample)
    return state.hexdigest()


def _update(update: Callable[[bytes], object], value: Any) -> None:
    """Feed a nested sample to a hash; of an object of an unknown kind only the kind."""
    update(f"{type(value).__name__} ".encode())
    if isinstance(value, Tensor) and value.layout is torch.strided:
        update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if str(key).startswith("__"):  # where WebDataset says which file a sample is from
                continue
            _update(update, key)
            _update(update, each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _update(update, each)
    elif isinstance(value, bytes):
        update(value)
    elif isinstance(value, (str, int, float, complex)):
        update(repr(value).encode())
    elif hasattr(value, "tobytes"):  # arrays of numpy, images
        update(value.tobytes())
