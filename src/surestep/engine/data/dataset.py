"""What a user may give as data, and what there is in it."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    TensorDataset,
)

from surestep.base.errors import DataError
from surestep.engine.data.sampler import has_default_sampler, loader_batching, sampler_of
from surestep.engine.data.sources import InMemory, TensorRows
from surestep.engine.data.stream import is_stream, length_of, peek, stream_in


def as_tensors(data: Any) -> tuple[Any, Tensor | None] | None:
    """Return (tensors, index) of data that lies in memory as tensors, else None."""
    if type(data) is TensorDataset:
        return data.tensors, None
    if type(data) is Subset:
        inner = as_tensors(data.dataset)
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


def is_mixture(data: Any) -> bool:
    """Say whether the data is several datasets by name, and not a dict of tensors."""
    return isinstance(data, dict) and bool(data) and as_tensors(data) is None


def _rows_of(data: Any, name: str) -> Any:
    """Return one dataset of several as samples."""
    if isinstance(data, DataLoader):
        raise DataError(
            f"train[{name!r}] is a DataLoader, and datasets are mixed sample by sample. Give its "
            "dataset."
        )
    if is_stream(data):
        raise DataError(
            f"train[{name!r}] is a stream, and datasets are mixed by positions, which it has not. "
            "Give a dataset with __len__ and __getitem__, or one stream that mixes."
        )
    dataset = dataset_of(data, f"train[{name!r}]")
    found = as_tensors(dataset) if isinstance(dataset, (tuple, dict)) else None
    return dataset if found is None else TensorRows(InMemory(*found))


def count_samples(data: Any, part: str) -> int | None:
    """Count the samples of the data; None for a stream that does not say.

    Raises:
        DataError: empty, or of no known kind.
    """
    dataset = dataset_of(data, part)
    if is_stream(dataset):
        return length_of(dataset)
    found = as_tensors(dataset)
    return len(InMemory(*found)) if found is not None else len(dataset)


def first_samples(data: Any, samples: int, part: str) -> Any:
    """Return the first samples of the data, as what it was; fewer if it has fewer.

    Raises:
        DataError: empty, or of no known kind.
    """
    dataset = dataset_of(data, part)
    there = count_samples(data, part)
    if is_stream(dataset):
        dataset = peek(dataset, samples)
        there = len(dataset)
        if not isinstance(data, DataLoader):
            return dataset
    if isinstance(data, DataLoader):
        few = Subset(dataset, range(min(samples, there or 0)))
        if data.batch_sampler is None:
            return DataLoader(few, batch_size=None)
        size = min(data.batch_size or samples, len(few))
        return DataLoader(few, batch_size=size, collate_fn=data.collate_fn)
    found = as_tensors(dataset)
    if found is None:
        return Subset(dataset, range(min(samples, len(dataset))))
    memory = InMemory(*found)
    return next(memory.read(0, None, [range(min(samples, len(memory)))]))


def dataset_of(data: Any, part: str) -> Any:
    """Return the dataset in `data`, which may be a DataLoader.

    Raises:
        DataError: empty, or of no known kind.
    """
    if is_stream(data):
        return stream_in(data, part)
    dataset: Any = data.dataset if isinstance(data, DataLoader) else data
    if is_mixture(dataset):
        dataset = ConcatDataset([_rows_of(each, name) for name, each in dataset.items()])
    if not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"The {part} data is a {type(dataset).__name__}, which has no positions. Give a "
            "dataset with __len__ and __getitem__, a tuple of tensors, a stream with __iter__, or "
            "a DataLoader over one."
        )
    found = as_tensors(dataset)
    if found is not None:
        _check_lengths(found[0], part)
    size = len(InMemory(*found)) if found is not None else len(cast(Any, dataset))
    if size == 0:
        raise DataError(f"The {part} data is empty: there is nothing to learn from or to measure.")
    return dataset


def _check_lengths(tensors: Any, part: str) -> None:
    """Check that tensors in memory have one row for each sample.

    Raises:
        DataError: they have not.
    """
    named = tensors if isinstance(tensors, dict) else dict(enumerate(tensors))
    lengths = {name: len(tensor) for name, tensor in named.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        if list(lengths) == [0, 1]:
            counts = f"the inputs have {lengths[0]} and the targets {lengths[1]}"
        raise DataError(
            f"The tensors of the {part} data have different lengths: {counts}. Inputs and targets "
            "need one row for each sample."
        )


def check_dtypes(train: Any, data: Any, part: str) -> None:
    """Check that tensors in memory to evaluate on have the dtypes of those to train on.

    Raises:
        DataError: one has another, which the model would fail on at the first evaluation.
    """
    found = [
        as_tensors(each.dataset if isinstance(each, DataLoader) else each) for each in (train, data)
    ]
    if found[0] is None or found[1] is None or len(found[0][0]) != len(found[1][0]):
        return
    own, other = (each[0] for each in found if each is not None)
    if isinstance(own, dict) is not isinstance(other, dict):
        return
    for name in own if isinstance(own, dict) else range(len(own)):
        if isinstance(own, dict) and name not in other:
            return
        wanted, got = own[name].dtype, other[name].dtype
        if wanted != got:
            parts: dict[Any, str] = {0: "inputs are", 1: "targets are"} if len(own) == 2 else {}
            what = parts.get(name)
            numpy = " (numpy's default)" if got == torch.float64 else ""
            short = str(wanted).removeprefix("torch.")
            raise DataError(
                f"The {part} {what or f'tensor {name!r} is'} {got}{numpy}, and in the training "
                f"data {wanted}. Convert with .to({wanted}) (in numpy .astype({short!r}))."
            )


def loader_settings(data: Any) -> dict[str, Any] | None:
    """Return the settings of a DataLoader that was given, in the Plan's words, else None.

    `shuffle` is None where it has a sampler of its own, `batch_size` where it makes no batches.
    """
    if not isinstance(data, DataLoader):
        return None
    stream = is_stream(data)
    shuffles = isinstance(sampler_of(data), RandomSampler)
    return {
        **loader_batching(data),
        "shuffle": False if stream else shuffles if has_default_sampler(data) else None,
        "num_workers": data.num_workers,
        "pin_memory": data.pin_memory,
        "persistent_workers": data.persistent_workers,
        "prefetch_factor": data.prefetch_factor,
    }


def check_batched(data: Any, part: str, *, batched: bool) -> None:
    """Check that a DataLoader makes batches, unless its elements are batches already.

    Raises:
        DataError: it makes none and its elements are samples, or the other way round.
    """
    if not isinstance(data, DataLoader):
        return
    makes_none = data.batch_size is None and data.batch_sampler is None
    if makes_none and not batched:
        raise DataError(
            f"The DataLoader of the {part} data has batch_size=None, so it makes no batches. If "
            "its dataset yields batches, pass Task(batched=True); if it yields samples, pass the "
            "dataset and set batch_size."
        )
    if batched and not makes_none:
        raise DataError(
            f"The DataLoader of the {part} data makes batches, and Task(batched=True) says that "
            "the elements of its dataset are batches already. Leave batched out, or pass "
            "DataLoader(dataset, batch_size=None)."
        )


def check_no_sampler(data: Any, part: str) -> None:
    """Check that what is measured has no sampler of its own: it is read whole and in order.

    Raises:
        DataError: a DataLoader with a sampler.
    """
    if isinstance(data, DataLoader) and not is_stream(data) and not has_default_sampler(data):
        raise DataError(
            f"The DataLoader of the {part} data has a sampler of its own, and what is measured is "
            "read whole and in its own order. Give the dataset, or a Subset of it."
        )


def unsupported_loader_options(data: Any) -> dict[str, Any]:
    """Return what a given DataLoader has and the Plan has no word for."""
    if not isinstance(data, DataLoader):
        return {}
    return {
        "timeout": data.timeout,
        "worker_init_fn": data.worker_init_fn,
        "multiprocessing_context": data.multiprocessing_context,
    }
