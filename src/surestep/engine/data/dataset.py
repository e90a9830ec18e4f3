"""What a user may give as data, and what there is in it."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from surestep.base.errors import DataError
from surestep.engine.data.source import InMemory


def unpack(data: Any) -> tuple[Any, Tensor | None] | None:
    """Return (tensors, index) of data that lies in memory as tensors, else None."""
    if type(data) is TensorDataset:
        return data.tensors, None
    if type(data) is Subset:
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


def samples_of(data: Any, part: str) -> int:
    """Count the samples of the data.

    Raises:
        DataError: not map-style, or empty.
    """
    dataset = dataset_of(data, part)
    found = unpack(dataset)
    return len(InMemory(*found)) if found is not None else len(dataset)


def first_samples(data: Any, samples: int, part: str) -> Any:
    """Return the first samples of the data, as what it was; fewer if it has fewer.

    Raises:
        DataError: not map-style, or empty.
    """
    dataset = dataset_of(data, part)
    if isinstance(data, DataLoader):
        few = Subset(dataset, range(min(samples, samples_of(data, part))))
        size = min(data.batch_size or samples, len(few))
        return DataLoader(few, batch_size=size, collate_fn=data.collate_fn)
    found = unpack(dataset)
    if found is None:
        return Subset(dataset, range(min(samples, len(dataset))))
    memory = InMemory(*found)
    return next(memory.read(0, None, [range(min(samples, len(memory)))]))


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
