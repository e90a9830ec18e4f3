"""Some samples of nested tensors: of a batch, or of what a model returns for it."""

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.engine.batch import flatten_tensors, map_tensors


class Axis(NamedTuple):
    """Where the samples of a tensor are.

    Attributes:
        dim: the dimension that runs over samples.
        block: consecutive entries of that dimension that belong to one sample.
    """

    dim: int
    block: int


Layout = list[Axis | None]  # of each tensor, in the order of tensors_in; None: not by sample


def has_samples(batch: Any, samples: int) -> bool:
    """Tell whether a nested batch holds something with one entry per sample, and nothing opaque."""
    return not has_opaque(batch) and bool(_per_sample(batch, samples))


def _per_sample(value: Any, samples: int) -> list[Any]:
    if _is_list_of_samples(value, samples):
        return [value]
    return [each for each in flatten_tensors(value) if each.dim() and len(each) == samples]


def select_samples(value: Any, rows: range, samples: int) -> Any:
    """Return copies of some samples of a batch; what has no entry per sample is kept as it is.

    Args:
        value: a batch as a collate function returns it: tensors whose first dimension is the
            samples, or lists with an element for each sample.
        rows: consecutive samples.
        samples: samples in the batch.
    """
    if _is_list_of_samples(value, samples):
        return type(value)(value[rows.start : rows.stop])
    if type(value) is dict:
        return {key: select_samples(each, rows, samples) for key, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(select_samples(each, rows, samples) for each in value)
    return map_tensors(value, lambda tensor: _select(tensor, rows, samples))


def _select(tensor: Tensor, rows: range, samples: int) -> Tensor:
    per_sample = tensor.dim() > 0 and len(tensor) == samples
    return tensor[rows.start : rows.stop].clone() if per_sample else tensor


def _is_list_of_samples(value: Any, samples: int) -> bool:
    """Tell a list with an element for each sample from a tuple of whole tensors, such as (x, y)."""
    if not isinstance(value, (list, tuple)) or len(value) != samples or hasattr(value, "_fields"):
        return False
    return not any(each.dim() and len(each) == samples for each in flatten_tensors(value))


def has_opaque(value: Any) -> bool:
    """Tell whether nested values hold an object that this module cannot look into."""
    if value is None or isinstance(value, (Tensor, str, bytes, bool, int, float, complex)):
        return False
    if isinstance(value, Mapping):
        return any(map(has_opaque, value.values()))
    if isinstance(value, Sequence):
        return any(map(has_opaque, value))
    if is_dataclass(value) and not isinstance(value, type):
        return any(map(has_opaque, vars(value).values()))
    return True


def first_axis(outputs: Any, samples: int) -> Layout | None:
    """Return the layout of outputs in which the first dimension of every tensor is the samples.

    None where that does not hold, or where the outputs hold no tensor or an opaque object.
    """
    tensors = flatten_tensors(outputs)
    if not tensors or has_opaque(outputs):
        return None
    if not all(each.dim() and len(each) == samples for each in tensors):
        return None
    return [Axis(0, 1)] * len(tensors)


def compare_layout(whole: Any, part: Any, samples: int, fewer: int) -> Layout:
    """Return where the samples of each output are, as the outputs of fewer samples show.

    Args:
        whole: what the model returns for `samples` samples.
        part: what it returns for `fewer` of them.
        samples: in the whole.
        fewer: in the part.
    """
    tensors, others = flatten_tensors(whole), flatten_tensors(part)
    if len(tensors) != len(others):
        return [None] * len(tensors)
    pairs = zip(tensors, others, strict=True)
    return [_axis(a.shape, b.shape, samples, fewer) for a, b in pairs]


def _axis(whole: torch.Size, part: torch.Size, samples: int, fewer: int) -> Axis | None:
    if len(whole) != len(part):
        return None
    differing = [dim for dim, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
    if len(differing) != 1:
        return None
    (dim,) = differing
    block, rest = divmod(whole[dim], samples)
    return None if rest or part[dim] != block * fewer else Axis(dim, block)


def take_samples(outputs: Any, layout: Layout, rows: range) -> Any:
    """Return copies of the outputs of some samples; tensors without samples are kept as they are.

    Args:
        outputs: nested tensors.
        layout: of each of them.
        rows: consecutive samples.
    """
    axes = iter(layout)

    def take(tensor: Tensor) -> Tensor:
        axis = next(axes)
        if axis is None:
            return tensor
        start, length = rows.start * axis.block, len(rows) * axis.block
        return tensor.narrow(axis.dim, start, length).clone()

    return map_tensors(outputs, take)


def put_samples(part: Any, whole: Any, layout: Layout, rows: range) -> Any:
    """Return the outputs of a part, with those that are split by sample taken from the whole."""
    taken = iter(flatten_tensors(take_samples(whole, layout, rows)))
    axes = iter(layout)

    def put(tensor: Tensor) -> Tensor:
        of_whole = next(taken)
        return tensor.clone() if next(axes) is None else of_whole

    return map_tensors(part, put)
