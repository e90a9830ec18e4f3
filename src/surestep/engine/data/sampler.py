"""A sampler of the user's own in a DataLoader: an order, where it can be seeded and sized."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from surestep.base.errors import DataError
from surestep.engine.data.samplers.user_function import CustomOrder
from surestep.engine.plan.batching import SampleOrder, order_generator
from surestep.engine.rng import preserve_rng, seed_loading

_INSTEAD = {
    "weight": "weighted(weights)",
    "balance": "balanced(labels)",
    "class": "balanced(labels)",
    "length": "by_length(lengths)",
    "bucket": "by_length(lengths)",
    "size": "by_length(lengths)",
}


def sampler_of(loader: "DataLoader[Any]") -> Any:
    """Return what says which samples a DataLoader loads: its sampler, or its own batch sampler."""
    batches = loader.batch_sampler
    if batches is None:  # batch_size=None: it hands on what the dataset has
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def has_default_sampler(loader: "DataLoader[Any]") -> bool:
    """Say whether a DataLoader takes every sample once: shuffled, or as stored."""
    sampler = sampler_of(loader)
    if type(sampler) is RandomSampler and sampler.replacement:
        return False
    if type(sampler) not in (RandomSampler, SequentialSampler):
        return False
    return len(sampler) == len(cast(Any, loader.dataset))


def loader_batching(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the batch size of a DataLoader, and whether it drops a smaller last batch.

    The batch size is None for one that makes no batches.
    """
    batches: Any = loader.batch_sampler
    if batches is None:
        return {"batch_size": None, "drop_last": False}
    if type(batches) is BatchSampler:
        return {"batch_size": batches.batch_size, "drop_last": batches.drop_last}
    with preserve_rng():
        seed_loading(0)
        _place(batches, 0, 0)
        first = next(iter(batches), ())
    return {"batch_size": max(1, len(first)), "drop_last": False}


def sampler_order(loader: "DataLoader[Any]") -> SampleOrder | None:
    """Return the order of a DataLoader's own sampler; None where it is plain.

    Raises:
        DataError: the sampler has no length, or is one rank's part of several.
    """
    if has_default_sampler(loader):
        return None
    sampler = sampler_of(loader)
    kind = type(sampler).__name__
    instead = _instead(kind)
    if not hasattr(sampler, "__len__"):
        raise DataError(
            f"The DataLoader's {kind} has no __len__, so nobody knows where an epoch ends. "
            f"{instead}"
        )
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise DataError(
            f"The DataLoader's {kind} gives one of {sampler.num_replicas} ranks its part, and "
            "surestep cuts a batch over ranks itself. Give the dataset, or shuffle=True."
        )
    own_batches = sampler is loader.batch_sampler
    length = None if own_batches else len(sampler)

    def read(seed: int, epoch: int) -> Iterable[int]:
        generators = _place(sampler, seed, epoch)
        try:
            indices = _in_batches(sampler, kind) if own_batches else sampler
            return list(islice(indices, None if length is None else length + 1))
        finally:
            for holder, own in generators:
                holder.generator = own

    return CustomOrder(read, f"The DataLoader's {kind}", instead, length, name=f"sampler: {kind}")


def _place(sampler: Any, seed: int, epoch: int) -> list[tuple[Any, Any]]:
    """Put a sampler, and one within, at an epoch; return the generators that it had."""
    kept = []
    for holder in (sampler, getattr(sampler, "sampler", None)):
        if callable(getattr(holder, "set_epoch", None)):
            cast(Any, holder).set_epoch(epoch)
        if isinstance(getattr(holder, "generator", 0), torch.Generator | None):
            kept.append((holder, cast(Any, holder).generator))
            cast(Any, holder).generator = order_generator(seed, epoch)
    return kept


def _in_batches(sampler: Iterable[list[int]], kind: str) -> Iterator[int]:
    """Yield the indices of batches that are of one size, but for a smaller last one.

    Raises:
        DataError: they are not.
    """
    size = before = 0
    for batch in sampler:
        size = size or len(batch)
        before = before or size
        if before < size or len(batch) > size:
            raise DataError(
                f"The DataLoader's {kind} makes a batch of {len(batch)} after one of {before}, and "
                "global batches have one size but for a smaller last one. Use Task(train="
                "surestep.BatchedDataset(dataset, batch_sampler), batched=True) to take the "
                "batches as they are, or Task(sampler=surestep.samplers.by_length(lengths))."
            )
        before = len(batch)
        yield from batch


def _instead(kind: str) -> str:
    fits = [order for word, order in _INSTEAD.items() if word in kind.lower()]
    order = fits[0] if fits else "custom(function)"
    return (
        f"Give the dataset and Task(sampler=surestep.samplers.{order}) instead: an order is a "
        "function of (seed, epoch)."
    )
