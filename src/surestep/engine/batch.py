"""A global batch, cut into micro-batches."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.base.errors import DataError

TARGETS = ("target", "targets", "label", "labels", "y")


class MicroBatch(NamedTuple):
    """What one forward sees: `model(*args, **kwargs)` against `targets`.

    With Task(batched=True) it is one element of the data, which counts as one sample.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    targets: Any
    items: float
    samples: int
    position: int  # of its first sample, in the order of the epoch
    part_items: tuple[float, ...] = ()  # of each of several losses
    is_ready: bool = False  # an element of Task(batched=True)

    @property
    def rows(self) -> int:
        """Return the length of its first dimension, which is `samples` unless it is ready-made."""
        if not (self.is_ready and self.samples):
            return self.samples
        return batch_size_of((self.targets, self.args, dict(self.kwargs)))


class Batch(NamedTuple):
    """What one optimizer step sees.

    `end` is the place in the epoch after it; `ends_epoch` says that no other follows in the epoch.
    `part_items` are the items of each of several losses, of which `items` is the sum.
    `left_out` says that it has no micro-batches since it follows on a loss spike.
    """

    micro_batches: tuple[MicroBatch, ...]
    items: float
    samples: int
    epoch: int
    position: int
    end: int
    ends_epoch: bool
    part_items: tuple[float, ...] = ()
    after_spike: bool = False


def sum_part_items(micro_batches: Iterable[MicroBatch]) -> tuple[float, ...]:
    """Add up the items of each of several losses."""
    return tuple(map(sum, zip(*(each.part_items for each in micro_batches), strict=True)))


def split_batch(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """Tell inputs from targets, where the Task says nothing: (args, kwargs, targets).

    `(x, y)` is one input and its targets; of a longer tuple the last is the targets. Of a dict the
    targets are at "target", "targets", "label", "labels" or "y", and the rest go by name.

    Raises:
        DataError: no such key, or more than one, or neither a tuple nor a dict.
    """
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return tuple(batch[:-1]), {}, batch[-1]
    if isinstance(batch, Mapping):
        named = [key for key in batch if key in TARGETS]
        if len(named) == 1:
            return (), {k: v for k, v in batch.items() if k != named[0]}, batch[named[0]]
        raise DataError(
            f"A batch has the keys {sorted(map(str, batch))}, and which holds the targets is not "
            "plain. Say Task(inputs=lambda batch: ({'x': batch['x']}, batch['y']))."
        )
    raise DataError(
        f"A batch is a {type(batch).__name__}, and which part is the targets is not plain. Let the "
        "dataset return (x, y), or say Task(inputs=lambda batch: (batch, targets))."
    )


def split_named(batch: Any, names: Iterable[str]) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """Tell inputs from the targets of several losses: in a dict they go by the losses' names.

    Raises:
        DataError: they do not, and which are the targets is not plain otherwise.
    """
    if not isinstance(batch, Mapping) or not all(name in batch for name in names):
        return split_batch(batch)
    targets = {name: batch[name] for name in names}
    return (), {key: each for key, each in batch.items() if key not in targets}, targets


def batch_as_inputs(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """Return all of a batch as inputs, where no loss takes targets: (args, kwargs, None)."""
    if isinstance(batch, Mapping):
        return (), batch, None
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}, None


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return nested tensors with each of them changed; containers keep their types.

    Args:
        value: tensors in any nesting of mappings, tuples, lists and dataclasses.
        change: called once for each tensor, in the order of `tensors_in`.
    """
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is dict:
        return {key: map_tensors(each, change) for key, each in value.items()}
    if isinstance(value, Mapping):
        return _with_values(value, {key: map_tensors(value[key], change) for key in value})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(each, change) for each in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(each, change) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for each in fields(value):
            mapped = map_tensors(getattr(value, each.name), change)
            object.__setattr__(changed, each.name, mapped)
        return changed
    return value


def _with_values(value: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other values; a dict where it cannot be copied."""
    try:
        changed: Any = copy.copy(value)
        for key, each in values.items():
            changed[key] = each
    except TypeError:
        return values
    return changed


def move(value: Any, device: torch.device) -> Any:
    """Copy the tensors of a nested batch to `device`, without waiting where they are pinned."""
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))


Split = Callable[[Any], tuple[tuple[Any, ...], Mapping[str, Any], Any]]


def channels_last(split: Split) -> Split:
    """Return `split` with its images, (samples, channels, height, width), laid out so."""

    def laid_out(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
        args, kwargs, targets = split(batch)
        named = {name: _channels_last(each) for name, each in kwargs.items()}
        return tuple(map(_channels_last, args)), named, targets

    return laid_out


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def flatten_tensors(value: Any) -> list[Tensor]:
    """List the tensors in any nesting of mappings, tuples, lists and dataclasses."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, each.name) for each in fields(value)]
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in flatten_tensors(each)]
    return []


def batch_size_of(batch: Any) -> int:
    """Return how many samples a nested batch holds: the length of its first tensor.

    Raises:
        DataError: there is no tensor with a batch dimension in it.
    """
    found = next(iter(flatten_tensors(batch)), None)
    if found is None or found.dim() == 0:
        raise DataError(
            f"A batch of type {type(batch).__name__} has no tensor with a batch dimension, so its "
            "samples cannot be counted. Give the Task a collate_fn that stacks tensors."
        )
    return found.shape[0]


def only_element(elements: Sequence[Any]) -> Any:
    """Collate one element that is a batch already."""
    (batch,) = elements
    return batch


def as_empty(micro: MicroBatch) -> MicroBatch:
    """Return a micro-batch that counts as none, of a rank that goes along with the others."""
    return micro._replace(items=0, samples=0, part_items=tuple(0 for _ in micro.part_items))


def dummy_micro_batch(micro: MicroBatch) -> MicroBatch:
    """Return what a rank without items walks over, as the others do; none of it counts.

    It holds a sample, and says so, since the user's step may divide by what it is told.
    """
    return micro._replace(items=1, samples=max(micro.samples, 1))


def zero_loss(outputs: Any) -> Tensor:
    """Return 0 that depends on outputs, so that a backward from it goes where theirs would go.

    A rank without items goes through the model all the same, since the others wait for it there.
    It is the sum of no elements: 0 times a logit of -inf would be NaN.
    """
    parts = [each[None][:0].sum() for each in flatten_tensors(outputs) if each.requires_grad]
    total = sum(parts[1:], start=parts[0])
    return total.float() if total.dtype.itemsize < torch.float32.itemsize else total
