"""A given DataLoader: its settings, and its sampler as an order of the samples."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from surestep.base.errors import DataError
from surestep.engine.data.columns import as_argument
from surestep.engine.data.samplers.basic import CustomOrder
from surestep.engine.data.stream import is_stream
from surestep.engine.plan.batching import SampleOrder, order_generator
from surestep.engine.rng import derive_seed, preserve_rng, seed_loading

_READ_AS_TORCH = ("torch", "torchdata", "accelerate")  # their subclasses give the same samples


def loader_settings(data: Any) -> dict[str, Any] | None:
    """Return the settings of a DataLoader by the names of the Plan; None for other data.

    `shuffle` is None if it has a custom sampler, `batch_size` if it makes no batches.
    """
    if not isinstance(data, DataLoader):
        return None
    shuffle: bool | None = False
    if not is_stream(data):
        shuffle = isinstance(sampler_of(data), RandomSampler) if has_default_sampler(data) else None
    return {
        **loader_batching(data),
        "shuffle": shuffle,
        "num_workers": data.num_workers,
        "pin_memory": data.pin_memory,
        "persistent_workers": data.persistent_workers,
        "prefetch_factor": data.prefetch_factor,
    }


def loader_batching(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the batch size of a DataLoader (None without batches), and whether it drops the last.

    A custom batch sampler is asked for its first batch.
    """
    batches: Any = loader.batch_sampler
    if batches is None:
        return {"batch_size": None, "drop_last": False}
    if type(batches) is BatchSampler:
        return {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    with preserve_rng():
        seed_loading(derive_seed("check", 0))
        _set_position(batches, 0, 0)
        first = next(iter(batches), ())
    return {"batch_size": max(1, len(first)), "drop_last": False}


def check_iteration(data: Any, part: str) -> None:
    """Check that a DataLoader is read as torch's are, since its dataset is read without it."""
    if not isinstance(data, DataLoader):
        return
    for kind in type(data).__mro__:
        own = {"__iter__", "_get_iterator"} & vars(kind).keys()
        if own and kind.__module__.partition(".")[0] not in _READ_AS_TORCH:
            raise DataError(
                f"The DataLoader of the {part} data is a {kind.__name__} with its own "
                f"{min(own)}(), and surestep reads the dataset itself, without it. Change "
                "the samples in the dataset, collate_fn or Task(batch_transform=...), and give "
                "torch's DataLoader. Or pass a function, "
                f"{as_argument(part, 'lambda: loader')}, with Task(batched=True): it is "
                "then read as a stream of ready batches."
            )


def check_batched(data: Any, part: str, *, batched: bool) -> None:
    """Check that a DataLoader makes batches, unless its elements are batches already."""
    if isinstance(data, DataLoader) and (data.batch_sampler is not None) == batched:
        what = "has batch_size=None, so it makes no batches"
        if batched:
            what = "makes batches, and Task(batched=True) is for elements that are batches already"
        raise DataError(
            f"The DataLoader of the {part} data {what}. If its dataset yields batches, pass "
            "Task(batched=True) and DataLoader(dataset, batch_size=None); if it yields samples, "
            "leave batched out and set batch_size."
        )


def check_no_sampler(data: Any, part: str) -> None:
    """Check that data to measure on has no custom sampler: all of it is read in stored order."""
    if isinstance(data, DataLoader) and not is_stream(data) and not has_default_sampler(data):
        raise DataError(
            f"The DataLoader of the {part} data has a custom sampler, and all of this data is "
            "read in stored order. Give the dataset, or a Subset of it."
        )


def sampler_of(loader: "DataLoader[Any]") -> Any:
    """Return the sampler of a DataLoader, or its custom batch sampler."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def has_default_sampler(loader: "DataLoader[Any]") -> bool:
    """Return whether a DataLoader reads every sample once: shuffled, or as stored."""
    sampler = sampler_of(loader)
    if type(sampler) not in (RandomSampler, SequentialSampler):
        return False
    draws_again = type(sampler) is RandomSampler and sampler.replacement
    return not draws_again and len(sampler) == len(cast(Any, loader.dataset))


def sampler_order(loader: "DataLoader[Any]") -> SampleOrder | None:
    """Return the order of a DataLoader's custom sampler; None for a default one."""
    if has_default_sampler(loader):
        return None
    sampler = sampler_of(loader)
    kind = type(sampler).__name__
    instead = (
        "Give the dataset and a function of surestep.samplers instead, Task(sampler=...): "
        "weighted(weights), balanced(labels), by_length(lengths), or custom(function) of "
        "(seed, epoch)."
    )
    if not hasattr(sampler, "__len__"):
        raise DataError(
            f"The DataLoader's {kind} has no __len__, so the end of an epoch is not known. "
            f"{instead}"
        )
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise DataError(
            f"The DataLoader's {kind} gives one of {sampler.num_replicas} ranks its shard, and "
            "surestep splits a batch over ranks itself. Give the dataset, or shuffle=True."
        )
    makes_batches = sampler is loader.batch_sampler
    length = None if makes_batches else len(sampler)

    def read(seed: int, epoch: int) -> Iterable[int]:
        generators = _set_position(sampler, seed, epoch)
        try:
            if makes_batches:
                return list(_in_batches(sampler, kind))
            return list(islice(sampler, len(sampler) + 1))
        finally:
            for holder, own in generators:
                holder.generator = own

    return CustomOrder(read, f"The DataLoader's {kind}", instead, length, name=f"sampler: {kind}")


def _set_position(sampler: Any, seed: int, epoch: int) -> list[tuple[Any, Any]]:
    """Put a sampler, and one within it, at an epoch; return the generators that they had."""
    before: list[tuple[Any, Any]] = []
    for holder in (getattr(sampler, "sampler", None), sampler):
        if callable(getattr(holder, "set_epoch", None)):
            cast(Any, holder).set_epoch(epoch)
        if isinstance(getattr(holder, "generator", 0), torch.Generator | None):
            before.append((holder, cast(Any, holder).generator))
            generator = order_generator(seed, epoch)
            if len(before) > 1:  # of a batch sampler around the sampler
                generator.manual_seed(derive_seed("sampler", seed, epoch, 1))
            cast(Any, holder).generator = generator
    return before


def _in_batches(sampler: Iterable[list[int]], kind: str) -> Iterator[int]:
    """Yield the indices of batches, which must have one size, except a smaller last one."""
    size = before = 0
    for batch in sampler:
        size = size or len(batch)
        before = before or size
        if before < size or len(batch) > size:
            raise DataError(
                f"The DataLoader's {kind} makes a batch of {len(batch)} after one of {before}, and "
                "global batches have one size, except a smaller last one. Use Task(train="
                "surestep.BatchedDataset(dataset, batch_sampler), batched=True) to take the "
                "batches as they are, or Task(sampler=surestep.samplers.by_length(lengths))."
            )
        before = len(batch)
        yield from batch
