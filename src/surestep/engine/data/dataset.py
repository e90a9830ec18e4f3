"""What you may pass as data, and how many samples it has."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from surestep.base.errors import DataError
from surestep.engine.data.sources import InMemory, TensorRows
from surestep.engine.data.stream import check_restarts, is_stream, length_of, peek


def in_memory(data: Any) -> InMemory | None:
    """Return data that is in memory as tensors, else None."""
    if type(data) is TensorDataset:
        return InMemory(data.tensors)
    if type(data) is Subset:
        inner = in_memory(data.dataset)
        if inner is None:
            return None
        index = torch.as_tensor(data.indices)
        return InMemory(inner.tensors, index if inner.index is None else inner.index[index])
    values = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else ()
    if not values or not all(isinstance(value, (Tensor, np.ndarray)) for value in values):
        return None
    if isinstance(data, dict):
        return InMemory({name: torch.as_tensor(value) for name, value in data.items()})
    return InMemory(tuple(torch.as_tensor(value) for value in data))


def is_mixture(data: Any) -> bool:
    """Return whether the data is several datasets by name, and not a dict of tensors."""
    return isinstance(data, dict) and bool(data) and in_memory(data) is None


def unwrap_loader(data: Any) -> Any:
    """Return the dataset of a DataLoader; other data as it is."""
    return data.dataset if isinstance(data, DataLoader) else data


def dataset_of(data: Any, part: str) -> Any:
    """Return the dataset in `data`, checked; several datasets become one.

    Raises:
        DataError: it is empty or of an unknown kind.
    """
    dataset = unwrap_loader(data)
    if is_stream(data):
        check_restarts(dataset, part)
        return dataset
    if is_mixture(dataset):
        dataset = ConcatDataset([_rows_of(one, name) for name, one in dataset.items()])
    if not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"The {part} data is a {type(dataset).__name__}, which has no positions. Give a "
            "dataset with __len__ and __getitem__, a tuple of tensors, a stream with __iter__, or "
            "a DataLoader over one."
        )
    memory = in_memory(dataset)
    if memory is not None:
        _check_lengths(memory.tensors, part)
    if len(memory if memory is not None else cast(Any, dataset)) == 0:
        raise DataError(f"The {part} data is empty: there is nothing to learn from or to measure.")
    return dataset


def _rows_of(data: Any, name: str) -> Any:
    """Return one dataset of several as samples."""
    if isinstance(data, DataLoader):
        raise DataError(
            f"train[{name!r}] is a DataLoader, and datasets are mixed sample by sample. Give its "
            "dataset."
        )
    if is_stream(data):
        raise DataError(
            f"train[{name!r}] is a stream, which has no positions to mix by. Give a dataset with "
            "__len__ and __getitem__, or one stream that mixes."
        )
    return as_samples(dataset_of(data, f"train[{name!r}]"))


def as_samples(dataset: Any) -> Any:
    """Return a dataset of samples; of tensors in memory, their rows."""
    memory = in_memory(dataset) if isinstance(dataset, (tuple, dict)) else None
    return dataset if memory is None else TensorRows(memory)


def _check_lengths(tensors: Any, part: str) -> None:
    by_name = tensors if isinstance(tensors, dict) else dict(enumerate(tensors))
    lengths = {name: len(tensor) for name, tensor in by_name.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        if list(lengths) == [0, 1]:
            counts = f"the inputs have {lengths[0]} and the targets {lengths[1]}"
        raise DataError(
            f"The tensors of the {part} data have different lengths: {counts}. Inputs and targets "
            "need one row for each sample."
        )


def count_samples(data: Any, part: str) -> int | None:
    """Count the samples of the data; None for a stream without a length.

    Raises:
        DataError: it is empty or of an unknown kind.
    """
    dataset = dataset_of(data, part)
    if is_stream(dataset):
        return length_of(dataset)
    memory = in_memory(dataset)
    return len(dataset if memory is None else memory)


def first_samples(data: Any, samples: int, part: str) -> Any:
    """Return at most the first samples of the data, as the same kind of data.

    Raises:
        DataError: it is empty or of an unknown kind.
    """
    dataset = dataset_of(data, part)
    if is_stream(dataset):
        dataset = peek(dataset, samples)
        if not isinstance(data, DataLoader):
            return dataset
    memory = in_memory(dataset)
    count = min(samples, len(dataset if memory is None else memory))
    if isinstance(data, DataLoader):
        few = Subset(dataset, range(count))
        if data.batch_sampler is None:
            return DataLoader(few, batch_size=None)
        size = min(data.batch_size or samples, count)
        return DataLoader(few, batch_size=size, collate_fn=data.collate_fn)
    if memory is None:
        return Subset(dataset, range(count))
    return next(memory.read(0, None, [range(count)]))


def check_dtypes(train: Any, data: Any, part: str) -> None:
    """Check that tensors in memory to evaluate on have the dtypes of those to train on.

    Raises:
        DataError: one differs, so the model would fail at the first evaluation.
    """
    memories = [in_memory(unwrap_loader(one)) for one in (train, data)]
    if memories[0] is None or memories[1] is None:
        return
    own, other = (
        memory.tensors if isinstance(memory.tensors, dict) else dict(enumerate(memory.tensors))
        for memory in memories
        if memory is not None
    )
    if own.keys() != other.keys():
        return
    roles = {0: "inputs are", 1: "targets are"} if len(own) == 2 else {}
    for name in own:
        wanted, got = own[name].dtype, other[name].dtype
        if wanted != got:
            numpy = " (numpy's default)" if got == torch.float64 else ""
            short = str(wanted).removeprefix("torch.")
            what = roles.get(name, f"tensor {name!r} is")
            raise DataError(
                f"The {part} {what} {got}{numpy}, and in the training data {wanted}. Convert with "
                f".to({wanted}) (in numpy .astype({short!r}))."
            )
