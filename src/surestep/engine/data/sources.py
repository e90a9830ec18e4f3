"""Where samples are, read by position, each loaded under the seed of its place.

What a sample's loading draws is seeded from (seed, epoch, position). So a place is enough to go
on from: nothing before it is loaded again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    default_collate,
    get_worker_info,
)

from surestep.base.errors import DataError
from surestep.engine.data.failures import Failed, checked, name_sample, name_samples
from surestep.engine.data.workers import Loader, begin_worker
from surestep.engine.generators import DatasetRNGs
from surestep.engine.rng import (
    clear_numpy_gauss_cache,
    derive_load_seed,
    preserve_rng,
    reset_numpy_bit_generator,
    seed_loading,
)


class Source(Protocol):
    """Where micro-batches come from, in order."""

    def __len__(self) -> int: ...

    def read(self, epoch: int, order: Tensor | None, ranges: Iterable[range]) -> Iterator[Any]:
        """Yield the batch at each range of positions; `order` None is the stored order."""
        ...

    def close(self) -> None:
        """Let the workers go."""
        ...


class InMemory:
    """Tensors that are sliced a batch at a time."""

    def __init__(self, tensors: Any, index: Tensor | None = None) -> None:
        self.tensors = tensors
        self.index = index
        values = tensors.values() if isinstance(tensors, dict) else tensors
        lengths = {len(tensor) for tensor in values}
        if len(lengths) > 1:
            raise DataError(
                f"The tensors of the data have different lengths: {sorted(lengths)}. Inputs and "
                "targets need one row for each sample."
            )
        self.samples = len(index) if index is not None else lengths.pop()

    def __len__(self) -> int:
        return self.samples

    def __getitems__(self, rows: list[int]) -> Any:
        """Return the batch of these rows of the tensors, for workers that slice."""
        return next(self.read(0, torch.as_tensor(rows), [range(len(rows))]))

    def read(self, epoch: int, order: Tensor | None, ranges: Iterable[range]) -> Iterator[Any]:
        """Yield the batch at each range, copied.

        Always into memory of its own: a model may write into its inputs, and a view that starts
        somewhere within a larger tensor changes the last bits, since kernels ask for alignment.
        """
        names = list(self.tensors) if isinstance(self.tensors, dict) else None
        tensors = list(self.tensors.values()) if names else self.tensors
        if self.index is not None:
            order = self.index if order is None else self.index[order]
        orders = [None if order is None else order.to(tensor.device) for tensor in tensors]
        for where in ranges:
            start, stop, parts = where.start, where.stop, []
            for tensor, rows in zip(tensors, orders, strict=True):
                if rows is None:
                    parts.append(tensor[start:stop].clone())
                else:
                    parts.append(tensor.index_select(0, rows[start:stop]))
            yield tuple(parts) if names is None else dict(zip(names, parts, strict=True))

    def close(self) -> None:
        """Do nothing: there are no workers."""


class TensorRows(Dataset[Any]):
    """Tensors in memory as samples, for a collate function of the user's own."""

    def __init__(self, memory: InMemory) -> None:
        self.memory = memory

    def __len__(self) -> int:
        return len(self.memory)

    def __getitem__(self, row: int) -> Any:
        tensors = self.memory.tensors
        if isinstance(tensors, dict):
            return {name: tensor[row] for name, tensor in tensors.items()}
        return tuple(tensor[row] for tensor in tensors)


class MicroBatchRequest(NamedTuple):
    """A micro-batch that a worker is asked for: its first position, and its samples in order."""

    epoch: int
    position: int
    samples: list[int]


class SeededDataset(Dataset[Any]):
    """A dataset whose every sample is loaded under the seed of its place, and then collated."""

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any], seed: int, part: str
    ) -> None:
        self.dataset = dataset
        self.part = part
        self.collate = collate
        self.collate_draws = collate is not default_collate
        self.seed = seed
        self._own: DatasetRNGs | None = None  # found in the process that loads
        self.may_draw = False  # this process's generators are handed over already

    def __getitem__(self, batch: MicroBatchRequest) -> Any:
        return self.__getitems__(batch)

    def __getitems__(self, batch: MicroBatchRequest) -> Any:
        """Load and collate one micro-batch."""
        if isinstance(self.dataset, InMemory):  # a slice draws nothing
            return self.dataset.__getitems__(batch.samples)
        if get_worker_info() is not None:
            try:
                return self._load(batch)
            except DataError as error:
                return Failed(str(error))
        if self.may_draw:
            return self._load(batch)
        with preserve_rng():
            return self._load(batch)

    def _load(self, batch: MicroBatchRequest) -> Any:
        own = self._own
        if own is None:
            own = self._own = DatasetRNGs(dataset=self.dataset, collate_fn=self.collate)
        loaded = self._collated(batch)
        # What the load itself has made was not seeded for it.
        return self._collated(batch) if own.has_new() else loaded

    def _collated(self, batch: MicroBatchRequest) -> Any:
        epoch, first, wanted = batch
        many = batched_getter(self.dataset)
        if many is None:
            samples, dataset, seed = [], self.dataset, self._seed
            try:
                for position, sample in enumerate(wanted, first):
                    seed(epoch, position)
                    samples.append(dataset[sample])
            except Exception as error:
                place = first + len(samples)
                raise name_sample(error, self.part, wanted[len(samples)], epoch, place) from error
        else:
            self._seed(epoch, first)
            try:
                samples = many(list(wanted))
            except Exception as error:
                raise name_samples(error, self.part, batch) from error
        if self.collate_draws:
            self._seed(epoch, first)
        try:
            return self.collate(samples)
        except Exception as error:
            raise name_samples(error, self.part, batch, samples, self.collate) from error

    def _seed(self, epoch: int, position: int) -> None:
        seed = derive_load_seed(self.seed, epoch, position)
        seed_loading(seed)
        info = get_worker_info()
        if info is not None:
            # Else it hangs on the worker, and on how often loading began in this process.
            object.__setattr__(info, "seed", seed)
        if self._own is not None and self._own.found:
            self._own.reseed(seed)


def batched_getter(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """Return what loads several samples at once, where a dataset has it."""
    # A Subset has __getitems__ only to hand on its dataset's, which may have none.
    holder = dataset.dataset if type(dataset) is Subset else dataset
    many: Callable[[list[int]], list[Any]] | None = getattr(dataset, "__getitems__", None)
    return many if hasattr(holder, "__getitems__") else None


class _RequestSampler:
    """The micro-batches to load next, as a DataLoader's batch sampler."""

    def __init__(self) -> None:
        self.epoch, self.order, self.ranges = 0, None, ()  # type: int, Tensor | None, Iterable[range]

    def __iter__(self) -> Iterator[Any]:
        # To slice an array takes a tenth of what a tensor's slice takes.
        order = None if self.order is None else self.order.numpy()
        for where in self.ranges:
            rows = where if order is None else order[where.start : where.stop].tolist()
            # Torch hands it on as it is, to workers too: less than a tuple for each sample.
            yield MicroBatchRequest(self.epoch, where.start, list(rows))


@dataclass(frozen=True)
class WorkerInit:
    """Prepare a worker; then the user's own function does.

    A worker leaves signals to the main process, and loads as that would.
    """

    own: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """Run in each worker before it loads anything."""
        begin_worker()
        reset_numpy_bit_generator()
        info = get_worker_info()
        # So that a function which sets `get_worker_info().dataset` up finds the user's own.
        object.__setattr__(info, "dataset", cast(Any, info).dataset.dataset)
        if self.own is not None:
            self.own(worker)


def _forgetting(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield batches, and let workers leave this process as loading here would."""
    for batch in batches:
        clear_numpy_gauss_cache()
        yield checked(batch)


def identity_collate(batch: Any) -> Any:
    """Collate what is a batch already."""
    return batch


class MapStyleSource:
    """A map-style dataset behind a DataLoader of our own."""

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        collate: Callable[[list[Any]], Any] | None,
        options: Mapping[str, Any],
        part: str = "train",
    ) -> None:
        self.dataset = dataset
        self._places = _RequestSampler()
        options = dict(options)
        start = WorkerInit(options.pop("worker_init_fn", None))
        self._seeded = SeededDataset(dataset, collate or default_collate, seed, part)
        self._draws = not isinstance(dataset, InMemory)
        self._has_workers = bool(options.get("num_workers"))
        self._by_torch = self._has_workers or bool(options.get("pin_memory"))
        self._loader = Loader(
            lambda: DataLoader(
                self._seeded,
                batch_sampler=self._places,
                collate_fn=identity_collate,
                worker_init_fn=start,
                generator=torch.Generator(),  # else iter() draws from the global generator
                **options,
            )
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, epoch: int, order: Tensor | None, ranges: Iterable[range]) -> Iterator[Any]:
        """Yield collated micro-batches, loaded ahead by the workers."""
        self._places.epoch, self._places.order, self._places.ranges = epoch, order, ranges
        if not self._by_torch:  # a DataLoader's own work takes 14 µs a micro-batch
            return map(self._seeded.__getitems__, self._places)
        found = iter(self._loader)
        return _forgetting(found) if self._draws and self._has_workers else found

    def take(self, found: Iterator[Any], count: int) -> Iterator[Any]:
        """Take the micro-batches of one batch: the generators take 16 µs to change hands."""
        if count == 1 or self._has_workers or not self._draws:
            return islice(found, count)
        with preserve_rng():
            self._seeded.may_draw = True
            try:
                return iter(list(islice(found, count)))
            finally:
                self._seeded.may_draw = False

    def close(self) -> None:
        """End the workers: persistent ones live as long as their DataLoader."""
        self._loader.close()
