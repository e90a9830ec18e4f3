"""Read the batches of a DataLoader: their tensors, labels and digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from surestep.doctor.runtime.tensors import is_tensor

if TYPE_CHECKING:
    from torch import Tensor

_LABELS = ("labels", "label", "targets", "target", "y", "classes")
_MOST_TENSORS = 8  # of a batch
_MOST_VALUES = 4096  # of a sample that its digest is made of
_MANY_VALUES = 8  # different ones


def list_tensors(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch, or of what a model returns.

    It is a tensor, or tuples, lists, dicts and dataclasses of them.
    """
    return [tensor for _, tensor in zip(range(_MOST_TENSORS), _find_tensors(batch), strict=False)]


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor is neither sparse nor nested."""
    return str(tensor.layout) == "torch.strided" and not tensor.is_nested


def _find_tensors(value: Any) -> Iterator[Tensor]:
    if is_tensor(value):
        if is_dense(value):
            yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _find_tensors(entry)
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _find_tensors(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for entry in vars(value).values():
            yield from _find_tensors(entry)


def find_labels(batch: Any) -> Tensor | None:
    """Return one label for each sample, as shape (N,); None if none is known.

    It is the last of several tensors, or that of a name such as "labels".
    """
    if isinstance(batch, Mapping):
        found = next((batch[name] for name in _LABELS if name in batch), None)
    else:
        is_pair = isinstance(batch, (tuple, list)) and len(batch) > 1
        found = batch[-1] if is_pair else None
    if found is None or not is_tensor(found) or found.dim() not in (1, 2):
        return None
    if found.dim() == 2 and found.shape[1] != 1:
        return None
    labels: Tensor = found.detach().reshape(-1)
    return labels if len(labels) else None


def digest_samples(tensor: Tensor) -> list[int]:
    """Return a number for each sample of a tensor on the CPU, equal for equal samples."""
    import torch

    rows = tensor.detach().reshape(len(tensor), -1)
    step = -(-rows.shape[1] // _MOST_VALUES)
    rows = rows[:, ::step] if step > 1 else rows
    table = rows.contiguous().view(torch.uint8).numpy()
    return [hash(row.tobytes()) for row in table]


def digest_parts(batch: Any) -> list[int | None]:
    """Return the digest of a batch, and of its tensors with many different real numbers.

    A number is None for a tensor without them: two batches may have the same few labels by chance.
    """
    parts = [digest_batch(tensor) if _has_many(tensor) else None for tensor in list_tensors(batch)]
    return [digest_batch(batch), *parts]


def _has_many(tensor: Tensor) -> bool:
    import torch

    if not tensor.is_floating_point() or tensor.device.type != "cpu" or tensor.dim() == 0:
        return False
    values = torch.unique(tensor.detach().reshape(-1)[:_MOST_VALUES])
    return len(values) >= _MANY_VALUES


def digest_batch(batch: Any) -> int | None:
    """Return a number that is equal for equal batches; None if it has no tensors of the CPU."""
    tensors = [t for t in list_tensors(batch) if t.dim() > 0 and t.numel() > 0]
    if not tensors or any(tensor.device.type != "cpu" for tensor in tensors):
        return None
    return hash(tuple(digest for tensor in tensors for digest in digest_samples(tensor)))
