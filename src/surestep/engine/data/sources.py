"""Sources of samples by position, each sample loaded under the seed of its position.

What the loading of a sample draws is seeded from (seed, epoch, position). So a run resumes at a
position without loading what comes before it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from operator import getitem
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    StackDataset,
    Subset,
    default_collate,
    get_worker_info,
)

from surestep.base.errors import DataError
from surestep.engine.batch import only_element
from surestep.engine.data.batched import BatchedDataset, load_batch
from surestep.engine.data.collated import CollatedBatch, count_collated
from surestep.engine.data.columns import explain_columns
from surestep.engine.data.failures import Failed, checked, name_sample, name_samples
from surestep.engine.data.workers import Loader, begin_worker
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.rng import (
    clear_numpy_gauss_cache,
    derive_seed,
    preserve_rng,
    reset_numpy_bit_generator,
    seed_sample,
)

if TYPE_CHECKING:  # it imports Pillow
    from surestep.engine.data.decoded_images import DecodedImages


class Source(Protocol):
    """Yields micro-batches in order.

    Attributes:
        collates: a function of the user makes each of samples, which it may pad or join.
    """

    @property
    def collates(self) -> bool: ...  # noqa: D102

    def read(self, epoch: int, order: Tensor | None, ranges: Iterable[range]) -> Iterator[Any]:
        """Yield the batch at each range of positions; `order` None is the stored order."""
        ...

    def follow(self, dataset: Any, epoch: int) -> bool:
        """Take what the program has changed of its data; return whether tensors were replaced."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class InMemory(Dataset[Any]):
    """Tensors that are sliced a batch at a time; `index` selects samples, as a Subset does."""

    collates = False

    def __init__(self, tensors: Any, index: Tensor | None = None) -> None:
        self.tensors = tensors
        self.index = index
        self.by_name = tensors if isinstance(tensors, dict) else dict(enumerate(tensors))
        self.samples = len(next(iter(self.by_name.values())) if index is None else index)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, row: int) -> Any:
        """Return a sample, for a custom collate function."""
        row = row if self.index is None else int(self.index[row])
        sample = {name: tensor[row] for name, tensor in self.by_name.items()}
        return sample if isinstance(self.tensors, dict) else tuple(sample.values())

    def batch(self, rows: Sequence[int]) -> Any:
        """Return the batch of these samples."""
        return next(self.read(0, torch.as_tensor(rows), [range(len(rows))]))

    def read(self, epoch: int, order: Tensor | None, ranges: Iterable[range]) -> Iterator[Any]:
        """Yield the batch at each range, copied.

        A model may write into its inputs. A view that starts within a larger tensor would also
        change the last bits, because kernels depend on alignment.
        """
        is_named = isinstance(self.tensors, dict)
        if self.index is not None:
            order = self.index if order is None else self.index[order]
        columns = [
            (name, tensor, None if order is None else order.to(tensor.device))
            for name, tensor in self.by_name.items()
        ]
        for where in ranges:
            part, batch = slice(where.start, where.stop), {}
            for name, tensor, rows in columns:
                if rows is None:
                    batch[name] = tensor[part].clone()
                else:
                    try:
                        batch[name] = tensor.index_select(0, rows[part])
                    except NotImplementedError as error:
                        raise _cannot_select(tensor) from error
            yield batch if is_named else tuple(batch.values())

    def follow(self, dataset: Any, epoch: int) -> bool:
        """Take the tensors of a dataset, and the indices of a Subset, as they are now."""
        if not isinstance(dataset, InMemory):
            while type(dataset) is Subset:
                dataset = dataset.dataset
            raise DataError(
                "The data was tensors in memory when the run began, and was replaced by a dataset "
                f"of the type {type(dataset).__name__} during the run. Replace the tensors or the "
                "indices alone (TensorDataset.tensors, Subset.indices), or start another run with "
                "the new dataset from the last checkpoint of this one: from_='RUN@last'."
            )
        if self._is_like(dataset):
            return False  # each read makes new views of arrays: workers need not begin again
        before = self.by_name
        self.tensors, self.index, self.by_name = dataset.tensors, dataset.index, dataset.by_name
        self.samples = dataset.samples
        return list(map(id, before.values())) != list(map(id, self.by_name.values()))

    def _is_like(self, other: "InMemory") -> bool:
        """Return whether another one reads the same memory, by the same indices."""
        ours, others = list(self.by_name.items()), list(other.by_name.items())
        if (self.index is None) != (other.index is None) or len(ours) != len(others):
            return False
        if self.index is not None and not torch.equal(self.index, cast(Tensor, other.index)):
            return False
        return all(
            name == name_of_other and (tensor is one or _is_same_array(tensor, one))
            for (name, tensor), (name_of_other, one) in zip(ours, others, strict=True)
        )

    def close(self) -> None:
        """Do nothing: there are no workers."""


def _cannot_select(tensor: Tensor) -> DataError:
    return DataError(
        f"A tensor of the data has the dtype {tensor.dtype}, whose rows torch cannot select. "
        "Convert it with .to(torch.int64)."
    )


def _is_same_array(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same view of memory: each read of an array makes one."""
    if one.layout is not torch.strided or other.layout is not torch.strided:
        return False
    views = [(view.data_ptr(), view.dtype, view.shape, view.stride()) for view in (one, other)]
    return views[0] == views[1]


class MicroBatchRequest(NamedTuple):
    """A micro-batch to load: its first position, and the indices of its samples."""

    epoch: int
    position: int
    samples: list[int]


class SeededDataset(Dataset[Any]):
    """A dataset that loads each sample under the seed of its position, then collates."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        seed: int,
        part: str,
        with_epoch: Sequence[Any],
    ) -> None:
        self.dataset = dataset
        self.part = part
        self.collate = collate
        self.seed = seed
        self.is_sliced = isinstance(dataset, InMemory) and collate is default_collate
        self.reseeds = False  # what collates draws other numbers
        self.counts = False  # the samples of each batch, which then is a CollatedBatch
        self.decoded: DecodedImages | None = None  # images that stay decoded
        self.preserves = True  # False while the caller preserves this process's generators
        self._own: OwnGenerators | None = None  # searched for in the process that loads
        self._with_epoch = with_epoch
        self._epoch = -1

    def __getitem__(self, batch: MicroBatchRequest) -> Any:
        return self.__getitems__(batch)

    def __getitems__(self, batch: MicroBatchRequest) -> Any:
        """Load and collate one micro-batch."""
        if self.is_sliced:  # which draws nothing
            return self.dataset.batch(batch.samples)
        if get_worker_info() is not None:
            try:
                return self._load(batch)
            except DataError as error:
                return Failed(str(error))
        if not self.preserves:
            return self._load(batch)
        with preserve_rng():
            return self._load(batch)

    def _load(self, batch: MicroBatchRequest) -> Any:
        if self._own is None:
            parts = ("dataset", self.dataset), ("collate_fn", self.collate)
            self._own = OwnGenerators(*parts)
        with nullcontext() if self.decoded is None else self.decoded.use():
            loaded = self._load_once(batch)
            # A generator that this load created was not seeded for it.
            return self._load_once(batch) if self._own.has_new() else loaded

    def _load_once(self, batch: MicroBatchRequest) -> Any:
        epoch, first, wanted = batch
        self.set_epoch(epoch)
        get_many = batched_getter(self.dataset)
        if get_many is None:
            samples, dataset, seed = [], self.dataset, self._seed
            is_ready = self.counts and self.collate is only_element
            load = load_batch if is_ready else getitem
            try:
                for position, sample in enumerate(wanted, first):
                    seed(epoch, position)
                    samples.append(load(dataset, sample))
            except Exception as error:
                at = len(samples)
                raise name_sample(error, self.part, wanted[at], epoch, first + at) from error
        else:
            self._seed(epoch, first)
            try:
                samples = get_many(list(wanted))
            except Exception as error:
                raise name_samples(error, self.part, batch) from error
        if self.collate is not default_collate:
            self._seed(epoch, -1 if self.reseeds else first)
        try:
            collated = self.collate(samples)
        except Exception as error:
            is_default = self.collate is default_collate
            columns = explain_columns(self.dataset, self.part) if is_default else None
            named = name_samples(error, self.part, batch, samples, self.collate)
            raise columns or named from error
        if not self.counts or self.collate in (default_collate, only_element):
            return collated
        return CollatedBatch(collated, count_collated(samples, collated))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, unless this process has set it; an evaluation may set a different one."""
        if not self._with_epoch:
            return
        ids = list(map(id, self._with_epoch))
        if self._epoch == epoch and all(_SET_BY.get(key) is self for key in ids):
            return
        self._epoch = epoch
        _SET_BY.update(dict.fromkeys(ids, self))
        for dataset in self._with_epoch:
            dataset.set_epoch(epoch)

    def _seed(self, epoch: int, position: int) -> None:
        seed = derive_seed("load", self.seed, epoch, position, self.part)
        seed_sample(seed)
        if self._own is not None and self._own.found:
            self._own.reseed(seed)


# What set the epoch of each dataset last in this process, by the dataset's id.
_SET_BY: WeakValueDictionary[int, SeededDataset] = WeakValueDictionary()


def find_with_epoch(dataset: Any) -> list[Any]:
    """Return the datasets with a `set_epoch` in torch's containers, or the dataset itself."""
    if callable(getattr(dataset, "set_epoch", None)):
        return [dataset]
    if isinstance(dataset, (Subset, BatchedDataset)):
        return find_with_epoch(dataset.dataset)
    if not isinstance(dataset, (ConcatDataset, StackDataset)):
        return []
    parts = dataset.datasets
    found = list(parts.values() if isinstance(parts, dict) else parts)
    return [inner for part in found for inner in find_with_epoch(part)]


def batched_getter(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """Return what loads several samples at once, if a dataset has it."""
    many: Callable[[list[int]], list[Any]] | None = getattr(dataset, "__getitems__", None)
    return many if _loads_batches(dataset) else None


def _loads_batches(dataset: Any) -> bool:
    """Return whether a dataset has its own `__getitems__`.

    torch's Subset and StackDataset have one only to forward to those of their datasets.
    """
    inherited = getattr(type(dataset), "__getitems__", None)
    if inherited is Subset.__getitems__:
        return _loads_batches(dataset.dataset)
    if inherited is StackDataset.__getitems__:
        parts = dataset.datasets
        return any(map(_loads_batches, parts.values() if isinstance(parts, dict) else parts))
    return callable(getattr(dataset, "__getitems__", None))


class _RequestSampler:
    """The micro-batches to load next, as a DataLoader's batch sampler."""

    epoch = 0
    order: Tensor | None = None
    ranges: Iterable[range] = ()

    def __iter__(self) -> Iterator[Any]:
        # To slice an array takes a tenth of what a tensor's slice takes.
        order = None if self.order is None else self.order.numpy()
        for where in self.ranges:
            rows = where if order is None else order[where.start : where.stop].tolist()
            yield MicroBatchRequest(self.epoch, where.start, list(rows))


def init_worker(own: Callable[[int], None] | None, worker: int) -> None:
    """Prepare a worker before it loads anything, then call the user's `worker_init_fn`."""
    begin_worker()
    reset_numpy_bit_generator()
    info = get_worker_info()
    # So that a function which changes `get_worker_info().dataset` gets the user's dataset.
    object.__setattr__(info, "dataset", cast(Any, info).dataset.dataset)
    if own is not None:
        own(worker)


def identity_collate(batch: Any) -> Any:
    """Return what is a batch already."""
    return batch


def make_torch_loader(dataset: Dataset[Any], options: Mapping[str, Any], **more: Any) -> Loader:
    """Return a loader of ready batches; `options` are those of a DataLoader."""
    options = dict(options)
    own_start = options.pop("worker_init_fn", None)
    loader = Loader(
        dataset,
        collate_fn=identity_collate,
        worker_init_fn=partial(init_worker, own_start),
        generator=torch.Generator(),  # else iter() draws from the global generator
        **options | more,
    )
    names = {"dataset": "dataset", "collate": "collate_fn"}
    held = {shown: getattr(dataset, name, None) for name, shown in names.items()}
    loader.of_program = (*held.items(), ("worker_init_fn", own_start))
    return loader


class MapStyleSource:
    """A map-style dataset, read by a DataLoader if there are workers."""

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        collate: Callable[[list[Any]], Any] | None,
        options: Mapping[str, Any],
        part: str = "train",
        with_epoch: Sequence[Any] | None = None,
        counts: bool = False,
        decoded: "DecodedImages | None" = None,
    ) -> None:
        self.dataset = dataset
        self._requests = _RequestSampler()
        if with_epoch is None:
            with_epoch = find_with_epoch(dataset)
        self._with_epoch = with_epoch
        self._epoch: int | None = None  # that the datasets had when their contents were noted
        self.collate = collate or default_collate
        self.collates = self.collate is not default_collate
        self._seeded = SeededDataset(dataset, self.collate, seed, part, with_epoch)
        self._seeded.counts, self._seeded.decoded = counts, decoded
        self.has_workers = bool(options.get("num_workers"))
        self._by_torch = self.has_workers or bool(options.get("pin_memory"))
        self._loader = make_torch_loader(self._seeded, options, batch_sampler=self._requests)
        self._loader.warns_of_changes = not self._seeded.is_sliced  # as without workers

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def decoded(self) -> "DecodedImages | None":
        """The images that are kept decoded; None if none are."""
        return self._seeded.decoded

    def read(self, epoch: int, order: Tensor | None, ranges: Iterable[range]) -> Iterator[Any]:
        """Yield collated micro-batches, which workers load ahead."""
        self._requests.epoch, self._requests.order = epoch, order
        self._requests.ranges = ranges
        self._loader.end_outdated(self._seeded.part, epoch)
        if epoch and self._seeded.decoded is not None:
            self._seeded.decoded.warn_of_rest(self._seeded.part)
        if not self._by_torch:  # a DataLoader's own work takes 14 us a micro-batch
            return map(self._seeded.__getitems__, self._requests)
        found: Iterator[Any] = iter(self._loader)
        if not self.has_workers or self._seeded.is_sliced:
            return found
        return map(self._check_loaded, found)

    def load(self, order: Tensor | None, positions: range, *, reseeded: bool = False) -> Any:
        """Load samples of the first epoch as one micro-batch.

        With `reseeded`, what `collate_fn` draws has a different seed.
        """
        if reseeded:
            self._loader.close()  # its workers keep what they began with
        self._seeded.reseeds = reseeded
        try:
            return next(self.read(0, order, [positions]))
        finally:
            self._seeded.reseeds = False
            if reseeded:
                self._loader.close()

    def follow(self, dataset: Any, epoch: int) -> bool:
        """Set the epoch here too, since the length may depend on it; follow tensors in memory."""
        if isinstance(self.dataset, InMemory):
            return self.dataset.follow(dataset, epoch)
        if self._with_epoch:
            with preserve_rng():
                if self._epoch is not None:  # another split may have set its own
                    self._seeded.set_epoch(self._epoch)
                self._loader.end_outdated(self._seeded.part, epoch)
                self._seeded.set_epoch(epoch)
            self._epoch = epoch
            self._loader.note_contents()
        return False

    def take(self, found: Iterator[Any], count: int) -> Iterator[Any]:
        """Take the micro-batches of one batch: to preserve the generators takes 16 us."""
        if count == 1 or self.has_workers or self._seeded.is_sliced:
            return islice(found, count)
        with preserve_rng():
            self._seeded.preserves = False
            try:
                return iter(list(islice(found, count)))
            finally:
                self._seeded.preserves = True

    @staticmethod
    def _check_loaded(batch: Any) -> Any:
        """Return what a worker loaded, and leave this process as loading here would."""
        clear_numpy_gauss_cache()
        return checked(batch)

    def close(self) -> None:
        """End the workers."""
        self._loader.close()
