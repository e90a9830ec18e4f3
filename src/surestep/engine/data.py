"""Data by place: order, cutting into micro-batches, loading seeded by position.

The order of an epoch is `torch.randperm` under a generator seeded from (seed, epoch); it is cut
into global batches and those into micro-batches. What a sample's loading draws is seeded from
(seed, epoch, position). So a place is enough to go on from: nothing before it is loaded again.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from surestep.base.errors import DataError
from surestep.engine.seed import LoadingRandomness, seed_at, seed_loading


def order_of(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the order of an epoch: the index of the sample at each position, (samples,) int64."""
    generator = torch.Generator().manual_seed(seed_at("order", seed, epoch))
    return torch.randperm(samples, generator=generator)


class Cut(NamedTuple):
    """How an epoch is cut: batches of `batch_size`, each in micro-batches."""

    samples: int
    batch_size: int
    micro_batch_size: int
    drop_last: bool = False

    def batches(self, start: int) -> Iterator[tuple[int, int, bool]]:
        """Yield (first position, end, is the last) of each batch from position `start` on."""
        whole = self.samples - self.samples % self.batch_size if self.drop_last else self.samples
        for first in range(start, whole, self.batch_size):
            end = min(first + self.batch_size, whole)
            yield first, end, end == whole

    def micro_batches(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (first position, end) of each micro-batch of a batch."""
        for start in range(first, end, self.micro_batch_size):
            yield start, min(start + self.micro_batch_size, end)


class Source(Protocol):
    """Where micro-batches come from, in order."""

    def __len__(self) -> int: ...

    def read(self, epoch: int, order: Tensor | None, ranges: list[range]) -> Iterator[Any]:
        """Yield the batch at each range of positions; `order` None is the stored order."""
        ...


# Measured on the small MLP: 1 MiB is past the knee, and fits a core's second-level cache.
GATHERED_BYTES = 2**20


class InMemory:
    """Tensors that are sliced a batch at a time."""

    def __init__(self, tensors: Any, index: Tensor | None = None) -> None:
        self.tensors = tensors
        self.index = index
        lengths = {len(tensor) for tensor in _parts(tensors)[1]}
        if len(lengths) > 1:
            raise DataError(
                f"The tensors of the data have different lengths: {sorted(lengths)}. Inputs and "
                "targets need one row for each sample."
            )
        self.samples = len(index) if index is not None else lengths.pop()
        rows = [tensor[:1] for tensor in _parts(tensors)[1]]
        self._row_bytes = max(1, sum(row.numel() * row.element_size() for row in rows))

    def __len__(self) -> int:
        return self.samples

    def __getitems__(self, rows: Any) -> Any:
        """Return the batch of these rows of the tensors, copied."""
        return self._each(lambda tensor: _gather(tensor, rows))

    def read(self, epoch: int, order: Tensor | None, ranges: list[range]) -> Iterator[Any]:
        """Yield slices of rows that are gathered many batches at a time.

        Gathering costs as much for one small batch as for sixteen; slicing what was gathered costs
        next to nothing. What is yielded is never the data itself, which a model could write into.
        """
        if self.index is not None:
            order = self.index if order is None else self.index[order]
        chunk = max(1, GATHERED_BYTES // self._row_bytes)
        start = end = 0
        for where in ranges:
            if where.stop > end:
                start, end = where.start, max(where.stop, min(where.start + chunk, self.samples))
                rows = slice(start, end)
                gathered = self.__getitems__(rows if order is None else order[rows])
                names, parts = _parts(gathered)
            first, last = where.start - start, where.stop - start
            sliced = []
            for part in parts:
                sliced.append(part[first:last])
            yield dict(zip(names, sliced, strict=True)) if names else tuple(sliced)

    def _each(self, function: Callable[[Tensor], Tensor]) -> Any:
        if isinstance(self.tensors, dict):
            return {name: function(tensor) for name, tensor in self.tensors.items()}
        return tuple(function(tensor) for tensor in self.tensors)


def _gather(tensor: Tensor, rows: slice | Tensor | list[int]) -> Tensor:
    if isinstance(rows, slice):
        return tensor[rows].clone()
    return tensor.index_select(0, torch.as_tensor(rows, device=tensor.device))


def _parts(batch: Any) -> tuple[list[str], list[Tensor]]:
    if isinstance(batch, dict):
        return list(batch), list(batch.values())
    return [], list(batch)


class Wanted(NamedTuple):
    """A sample that a worker is asked for."""

    epoch: int
    position: int
    sample: int


class Seeded(Dataset[Any]):
    """A dataset whose every sample is loaded under the seed of its place, and then collated."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self.dataset = dataset
        self.collate = collate
        self.seed = seed

    def __getitem__(self, wanted: Wanted) -> Any:
        return self.__getitems__([wanted])

    def __getitems__(self, batch: list[Wanted]) -> Any:
        """Load and collate one micro-batch."""
        if get_worker_info() is not None:
            return self._load(batch)
        with LoadingRandomness():
            return self._load(batch)

    def _load(self, batch: list[Wanted]) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        if many is not None:
            self._seed(batch[0])
            samples = many([wanted.sample for wanted in batch])
        else:
            samples = [self._one(wanted) for wanted in batch]
        self._seed(batch[0])
        return self.collate(samples)

    def _one(self, wanted: Wanted) -> Any:
        self._seed(wanted)
        return self.dataset[wanted.sample]

    def _seed(self, wanted: Wanted) -> None:
        seed_loading(seed_at("load", self.seed, wanted.epoch, wanted.position))


class _Places:
    """The micro-batches to load next, as a DataLoader's batch sampler."""

    def __init__(self) -> None:
        self.epoch, self.order, self.ranges = 0, None, []  # type: int, Tensor | None, list[range]

    def __iter__(self) -> Iterator[list[Wanted]]:
        for where in self.ranges:
            if self.order is None:
                yield [Wanted(self.epoch, place, place) for place in where]
            else:
                indices = self.order[where.start : where.stop].tolist()
                yield [Wanted(self.epoch, *each) for each in zip(where, indices, strict=True)]

    def __len__(self) -> int:
        return len(self.ranges)


@dataclass(frozen=True)
class _WorkerStart:
    """Let workers ignore Ctrl-C, which the terminal sends to them too; then the user's own."""

    own: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self.own is not None:
            self.own(worker)


def as_it_is(batch: Any) -> Any:
    """Collate what is a batch already."""
    return batch


class Loaded:
    """A map-style dataset behind a DataLoader of our own."""

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        collate: Callable[[list[Any]], Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self.dataset = dataset
        self._places = _Places()
        options = dict(options)
        start = _WorkerStart(options.pop("worker_init_fn", None))
        self._loader = DataLoader(
            Seeded(dataset, collate or default_collate, seed),
            batch_sampler=self._places,
            collate_fn=as_it_is,
            worker_init_fn=start,
            generator=torch.Generator(),  # else iter() draws from the global generator
            **options,
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, epoch: int, order: Tensor | None, ranges: list[range]) -> Iterator[Any]:
        """Yield collated micro-batches, loaded ahead by the workers."""
        self._places.epoch, self._places.order, self._places.ranges = epoch, order, ranges
        return iter(self._loader)


def unpack(data: Any) -> tuple[Any, Tensor | None] | None:
    """Return (tensors, index) of data that lies in memory as tensors, else None."""
    if isinstance(data, TensorDataset):
        return data.tensors, None
    if isinstance(data, Subset):
        inner = unpack(data.dataset)
        if inner is None:
            return None
        index = torch.as_tensor(data.indices)
        return inner[0], index if inner[1] is None else inner[1][index]
    values = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else ()
    if not values or not all(isinstance(value, (Tensor, np.ndarray)) for value in values):
        return None
    if isinstance(data, dict):
        return {name: torch.as_tensor(value) for name, value in data.items()}, None
    return tuple(torch.as_tensor(value) for value in data), None


def first_samples(data: Any, samples: int) -> Any:
    """Return the first samples of the data, in memory where the data is; fewer if it has fewer.

    Raises:
        DataError: not map-style, or empty.
    """
    dataset = dataset_of(data, "same")
    found = unpack(dataset)
    if found is None:
        return Subset(dataset, range(min(samples, len(dataset))))
    rows = slice(samples) if found[1] is None else found[1][:samples]
    return InMemory(*found).__getitems__(rows)


def dataset_of(data: Any, part: str) -> Any:
    """Return the dataset in `data`, which may be a DataLoader.

    Raises:
        DataError: not map-style, or empty.
    """
    dataset = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"The {part} data is a {type(dataset).__name__}, which has no positions. Give a "
            "dataset with __len__ and __getitem__, a tuple of tensors, or a DataLoader over one."
        )
    found = unpack(dataset)
    size = len(InMemory(*found)) if found is not None else len(cast(Any, dataset))
    if size == 0:
        raise DataError(f"The {part} data is empty: there is nothing to learn from or to measure.")
    return dataset


def loader_settings(data: Any) -> dict[str, Any] | None:
    """Return the settings of a DataLoader that was given, in the Plan's words, else None.

    Raises:
        DataError: a sampler of the user's own, whose order is not a function of place.
    """
    if not isinstance(data, DataLoader):
        return None
    sampler: Any = getattr(data.batch_sampler, "sampler", None)
    if data.batch_size is None or type(sampler) not in (RandomSampler, SequentialSampler):
        raise DataError(
            "The DataLoader has a sampler of its own, and its order could not be repeated. Give "
            "the dataset, or a DataLoader with batch_size and shuffle."
        )
    if getattr(sampler, "replacement", False) or len(sampler) != len(cast(Any, data.dataset)):
        raise DataError(
            "The DataLoader's RandomSampler draws with replacement or a part only, and its order "
            "could not be repeated. Give the dataset, or a DataLoader with shuffle=True."
        )
    return {
        "batch_size": data.batch_size,
        "shuffle": isinstance(sampler, RandomSampler),
        "drop_last": data.drop_last,
        "num_workers": data.num_workers,
        "pin_memory": data.pin_memory,
        "persistent_workers": data.persistent_workers,
        "prefetch_factor": data.prefetch_factor,
    }


def own_options(data: Any) -> dict[str, Any]:
    """Return what a given DataLoader has and the Plan has no word for."""
    if not isinstance(data, DataLoader):
        return {}
    return {
        "timeout": data.timeout,
        "worker_init_fn": data.worker_init_fn,
        "multiprocessing_context": data.multiprocessing_context,
    }
