"""What you may pass as data, and how many samples it has."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from surestep.base.errors import DataError
from surestep.engine.batch import only_element
from surestep.engine.data.columns import check_not_table
from surestep.engine.data.sources import InMemory
from surestep.engine.data.stream import check_restarts, is_stream, length_of, peek
from surestep.engine.task.task import Task


def in_memory(data: Any) -> InMemory | None:
    """Return data that is in memory as tensors, else None."""
    if isinstance(data, InMemory):
        return data
    if type(data) is TensorDataset:
        return InMemory(data.tensors)
    if type(data) is Subset:
        inner = in_memory(data.dataset)
        if inner is None:
            return None
        index = torch.as_tensor(data.indices)
        index = torch.where(index < 0, index + len(inner), index)  # from the end, as in Python
        return InMemory(inner.tensors, index if inner.index is None else inner.index[index])
    values = data.values() if isinstance(data, dict) else data if isinstance(data, tuple) else ()
    if not values or not all(isinstance(value, (Tensor, np.ndarray)) for value in values):
        return None
    if isinstance(data, dict):
        return InMemory({name: _as_tensor(value) for name, value in data.items()})
    return InMemory(tuple(map(_as_tensor, data)))


def _as_tensor(value: Tensor | np.ndarray[Any, Any]) -> Tensor:
    try:
        return torch.as_tensor(value)
    except TypeError as error:
        raise DataError(
            f"An array of shape {tuple(value.shape)} in the data has the dtype {value.dtype}, "
            "which is not a type of torch. Convert numbers with .astype('float32'), and names of "
            "classes to indices with numpy.unique(names, return_inverse=True)[1]."
        ) from error


def is_mixture(data: Any) -> bool:
    """Return whether the data is several datasets by name, and not a dict of tensors."""
    return isinstance(data, dict) and bool(data) and in_memory(data) is None


def unwrap_loader(data: Any) -> Any:
    """Return the dataset of a DataLoader; other data as it is."""
    return data.dataset if isinstance(data, DataLoader) else data


def find_collate(data: Any, task: Task) -> Callable[[list[Any]], Any] | None:
    """Return the collate function of one split; None for torch's default.

    The DataLoader's own, which is of this split alone, comes before the Task's. If it is torch's
    default, no one may have chosen it.
    """
    own = getattr(data, "collate_fn", None)
    is_chosen = isinstance(data, DataLoader) and own not in (default_collate, default_convert)
    if is_chosen and task.collate_fn is not only_element:
        return own
    collate = task.collate_fn or own
    return None if collate is default_collate else collate


def dataset_of(data: Any, part: str) -> Any:
    """Return a stream as it is, else a dataset of samples; several datasets become one."""
    dataset = unwrap_loader(data)
    if is_stream(data):
        check_restarts(dataset, part)
        return dataset
    if is_mixture(dataset):
        for name, one in dataset.items():
            if isinstance(one, DataLoader) or is_stream(one):
                kind = "a DataLoader" if isinstance(one, DataLoader) else "a stream"
                raise DataError(
                    f"train[{name!r}] is {kind}, and datasets are mixed by the positions of their "
                    "samples. Give a dataset with __len__ and __getitem__."
                )
        return ConcatDataset([dataset_of(one, f"train[{name!r}]") for name, one in dataset.items()])
    check_not_table(dataset, part)
    kind, memory = type(dataset).__name__, in_memory(dataset)
    if memory is not None:
        dataset = memory
        lengths = {len(tensor): None for tensor in memory.by_name.values()}
        if len(lengths) > 1:
            raise DataError(
                f"The tensors of the {part} data have different lengths: "
                f"{' and '.join(map(str, lengths))}. Inputs and targets need one row for each "
                "sample."
            )
    if not hasattr(dataset, "__getitem__") or isinstance(dataset, str):
        shown = f"the text {dataset!r}" if isinstance(dataset, str) else f"a {kind}"
        raise DataError(
            f"The {part} data is {shown}, which has no samples. Give a dataset with __len__ and "
            "__getitem__, a tuple of tensors, a stream with __iter__, or a DataLoader over one."
        )
    if len(dataset) == 0:
        raise DataError(
            f"The {part} data is empty: the {kind} has 0 samples. Check the path that it was read "
            "from and the filters that were applied."
        )
    return dataset


def count_samples(data: Any, part: str) -> int | None:
    """Count the samples of the data; None for a stream without a length."""
    dataset = dataset_of(data, part)
    return length_of(dataset) if is_stream(dataset) else len(dataset)


def first_samples(data: Any, samples: int, part: str) -> Any:
    """Return at most the first samples of the data, as data that is read in the same way."""
    dataset = dataset_of(data, part)
    if is_stream(dataset):
        dataset = peek(dataset, samples)
    count = min(samples, len(dataset))
    few = Subset(dataset, range(count))
    if not isinstance(data, DataLoader):
        return few
    if data.batch_sampler is None:
        return DataLoader(few, batch_size=None)
    size = min(data.batch_size or samples, count)
    return DataLoader(few, batch_size=size, collate_fn=data.collate_fn)


def check_dtypes(train: Any, data: Any, part: str, model: nn.Module) -> None:
    """Check that tensors in memory to evaluate on have the dtypes of those to train on."""
    own, other = in_memory(unwrap_loader(train)), in_memory(unwrap_loader(data))
    if own is None or other is None or own.by_name.keys() != other.by_name.keys():
        return
    for name, tensor in other.by_name.items():
        got, wanted = tensor.dtype, own.by_name[name].dtype
        if got != wanted:
            fits = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
            raise DataError(
                f"Tensor {name!r} of the {part} data is {got}, and in the training data {wanted}. "
                f"{_conversion({part: got, 'training': wanted}, fits)}"
            )


def _conversion(dtypes: dict[str, torch.dtype], fits: torch.dtype | None) -> str:
    """Return how to make the dtypes of two sets equal, for a model of dtype `fits`."""
    n_floating = sum(dtype.is_floating_point for dtype in dtypes.values())
    if n_floating == 0:
        return "Convert both with .long()."
    if n_floating == 1 or fits is None:
        return (
            "Give both the same dtype. Class indices are integers (.long()), and numbers to "
            "compute with are floating point (.float())."
        )
    parts = [part for part, dtype in dtypes.items() if dtype != fits]
    which = f"the {parts[0]} data" if len(parts) == 1 else "both"
    return f"Convert {which} with .to({fits}) (in numpy .astype({str(fits)[6:]!r}))."
