"""A global batch and its micro-batches; functions on nested tensors."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.base.errors import DataError, NoTargetsError, TaskError

_LISTED = 4  # tensors that a message describes
LEAVE_OUT = (
    " If collate_fn leaves samples out, leave them out of the data instead, by a "
    "torch.utils.data.Subset; of the training data also by exclude_samples."
)
TARGETS = ("target", "targets", "label", "labels", "y")


class MicroBatch(NamedTuple):
    """What one forward gets: `model(*args, **kwargs)` and `targets`.

    With Task(batched=True) it is one element of the data, which counts as one sample.

    Attributes:
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
        targets: what the loss compares the outputs with.
        items: number of items that its loss is a mean over.
        samples: number of samples.
        position: of its first sample, in the order of the epoch.
        part_items: the items of each of several losses, of which `items` is the sum.
        is_ready: it is an element of Task(batched=True).
        collated: number of samples that were collated, once that is counted.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    targets: Any
    items: float
    samples: int
    position: int
    part_items: tuple[float, ...] = ()
    is_ready: bool = False
    collated: int | None = None

    @property
    def inputs(self) -> Any:
        """Return what the model takes: one argument, a tuple of them, or a dict by keyword."""
        if self.kwargs:
            return dict(self.kwargs)
        return self.args[0] if len(self.args) == 1 else self.args

    @property
    def has_targets(self) -> bool:
        """Whether it has targets, which a model that computes its own loss finds in its inputs."""
        is_all = isinstance(self.targets, Mapping) and self.targets.keys() == self.kwargs.keys()
        return self.targets is not None and not is_all

    @property
    def rows(self) -> int:
        """Return how many samples it holds, which is `samples` unless it is ready-made."""
        if not (self.is_ready and self.samples):
            return self.samples
        if self.collated is not None:
            return self.collated
        return batch_size_of((self.targets, self.args, dict(self.kwargs)))


class Batch(NamedTuple):
    """What one optimizer step gets.

    Attributes:
        micro_batches: of this rank.
        items: number of items in these micro-batches.
        samples: number of samples, of all ranks where they share the batches.
        epoch: the epoch, from 0.
        position: of its first sample, in the order of the epoch.
        end: the position after it.
        ends_epoch: it is the last batch of the epoch.
        part_items: the items of each of several losses, of which `items` is the sum.
        after_spike: it has no micro-batches, because it follows a loss spike.
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
    return tuple(map(sum, zip(*(micro.part_items for micro in micro_batches), strict=True)))


def split_batch(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """Split a batch into (args, kwargs, targets), by default.

    `(x, y)` is one input and its targets; of a longer tuple the last is the targets. Of a dict the
    targets are at "target", "targets", "label", "labels" or "y", and the rest is passed by name.

    Raises:
        NoTargetsError: there are no targets.
        DataError: the targets are ambiguous.
    """
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return tuple(batch[:-1]), {}, batch[-1]
    if isinstance(batch, Mapping):
        named = [key for key in batch if key in TARGETS]
        if len(named) == 1:
            return (), {key: batch[key] for key in batch if key != named[0]}, batch[named[0]]
        raise (DataError if named else NoTargetsError)(
            f"A batch has the keys {sorted(map(str, batch))}, and it is not clear which of them "
            "has the targets. Set Task(inputs=lambda batch: ({'x': batch['x']}, batch['y']))."
        )
    if batch is None:
        raise DataError(
            "A batch is None. Return (x, y) from collate_fn, or from the dataset; if collate_fn "
            "leaves out all samples of a batch, tensors with 0 rows."
        )
    raise NoTargetsError(
        f"A batch is a {type(batch).__name__}, and it is not clear which part is the targets. "
        "Let the dataset return (x, y), or pass tensors (x, y). Or set "
        "Task(inputs=lambda batch: (batch, targets)), with None for a loss that needs no targets."
    )


def split_named(batch: Any, names: Iterable[str]) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """Split a batch into inputs and the targets of several losses, by the losses' names in a dict.

    Raises:
        DataError: as `split_batch`, for other batches.
    """
    if not isinstance(batch, Mapping) or not all(name in batch for name in names):
        return split_batch(batch)
    targets = {name: batch[name] for name in names}
    return (), {key: value for key, value in batch.items() if key not in targets}, targets


def batch_as_inputs(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """Return all of a batch as inputs: (args, kwargs, None)."""
    if isinstance(batch, Mapping):
        return (), batch, None
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}, None


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return nested tensors, each changed; containers keep their types."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) is dict:
        return {key: map_tensors(member, change) for key, member in value.items()}
    if isinstance(value, Mapping):
        return _with_values(value, {key: map_tensors(value[key], change) for key in value})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(member, change) for member in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(member, change) for member in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in fields(value):
            mapped = map_tensors(getattr(value, field.name), change)
            object.__setattr__(changed, field.name, mapped)
        return changed
    return value


def _with_values(value: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other values; a dict if it cannot be changed."""
    try:
        changed: Any = copy.copy(value)
        for key, member in values.items():
            changed[key] = member
    except TypeError:
        return values
    return changed


def move(value: Any, device: torch.device) -> Any:
    """Copy the tensors of a nested batch to `device`, without waiting if they are pinned."""
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))


Split = Callable[[Any], tuple[tuple[Any, ...], Mapping[str, Any], Any]]


def channels_last(split: Split) -> Split:
    """Return `split` with images (samples, channels, height, width) in channels-last layout."""

    def split_and_convert(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
        args, kwargs, targets = split(batch)
        named = {name: _channels_last(value) for name, value in kwargs.items()}
        return tuple(map(_channels_last, args)), named, targets

    return split_and_convert


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def as_members(value: Any) -> Any:
    """Return the fields of a dataclass by name; anything else as it is."""
    if is_dataclass(value) and not isinstance(value, (type, Mapping)):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value


def flatten_tensors(value: Any) -> list[Tensor]:
    """List the tensors in any nesting of mappings, tuples, lists and dataclasses."""
    if isinstance(value, Tensor):
        return [value]
    value = as_members(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for member in value for tensor in flatten_tensors(member)]
    return []


def describe_shapes(value: Any) -> str:
    """Return the shapes of the first nested tensors, for a message."""
    return f"[{_first_few(str(tuple(tensor.shape)) for tensor in flatten_tensors(value))}]"


def explain_targets(targets: Any, called: str) -> str:
    """Return what to do if a loss or metric fails on targets that are not a tensor; else ""."""
    if isinstance(targets, Tensor):
        return ""
    if targets is None:
        return (
            f"The targets of a batch are None, and {called} compares the outputs with them. Return "
            "(x, y) from the dataset, and from Task(inputs=...) if it is set; or to compare with "
            "the inputs, set Task(inputs=lambda batch: (batch[0], batch[0]))."
        )
    if not isinstance(targets, (tuple, list, Mapping)):
        return f"The targets of a batch are a {type(targets).__name__}. Return a tensor."
    if isinstance(targets, (tuple, list)) and targets and not flatten_tensors(targets):
        return (
            f"The targets of a batch, its last part, hold no tensor, but {targets[0]!r:.60}. "
            "Return a tensor of numbers, such as the index of each class, from the dataset or "
            "collate_fn. Or choose another part: Task(inputs=lambda batch: (batch[0], batch[1]))."
        )
    kind = "dict" if isinstance(targets, Mapping) else type(targets).__name__
    first = next(iter(targets), 0) if isinstance(targets, Mapping) else 0
    return (
        f"The targets of a batch are a {kind} of {len(targets)}. For a loss or metric of one "
        f"tensor, choose it, such as Task(inputs=lambda batch: (batch[0], batch[-1][{first!r}])); "
        "for several, give a function of (outputs, targets)."
    )


def describe_tensors(value: Any) -> str:
    """Return the shapes and dtypes of the first nested tensors, for a message."""
    tensors = flatten_tensors(value)
    return _first_few(f"{tuple(x.shape)} of {x.dtype}" for x in tensors) or "no tensor"


def _first_few(texts: Iterable[str]) -> str:
    texts = list(texts)
    more = f", and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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


def count_samples_in(micro: MicroBatch, raw: Any) -> int:
    """Return of how many samples a micro-batch is.

    These are the samples that were collated, unless `Task(inputs=)` left some out.

    Raises:
        TaskError: it is a ready batch whose samples were not counted, and its tensors do not show
            how many they are.
    """
    if micro.is_ready and micro.collated is None:
        found = samples_of_ready(micro)
        if found is None:
            raise _unknown_samples(micro, raw)
        return found
    samples = micro.samples if micro.collated is None else micro.collated
    read = tensors_with_rows(raw)
    if samples not in map(len, read):
        return samples
    return count_made_of(samples, _given(micro), joined=(), sizes={x.numel() for x in read})


def count_made_of(samples: int, made: list[Tensor], joined: Iterable[int], sizes: set[int]) -> int:
    """Return of how many samples tensors were made.

    If some were left out, all tensors have as many rows, and fewer. Otherwise one has a row for
    each sample, or has them in its columns (time comes first), or the samples are joined in rows.

    Args:
        samples: how many there were.
        made: tensors that have rows.
        joined: the numbers of rows of tensors that join all samples.
        sizes: the numbers of elements of tensors of all samples; empty if they may be padded.
    """
    rows = {len(x) for x in made}
    if samples in rows or len(rows) != 1 or max(rows) > samples:
        return samples
    is_turned = all(samples in x.shape[:2] and (not sizes or x.numel() in sizes) for x in made)
    return samples if is_turned or not rows.isdisjoint(joined) else max(rows)


def left_out_hint(rows: int, samples: int) -> str:
    """Return what to do if a batch has fewer rows than samples were read for it; else ""."""
    return LEAVE_OUT if 0 < rows < samples else ""


def samples_of_ready(micro: MicroBatch, *, is_alone: bool = False) -> int | None:
    """Return how many samples a ready batch holds, if it was counted or all rows are samples.

    If all tensors have as many columns too, time may come first; a batch that is alone in its step
    has the same share of it either way.
    """
    if micro.collated is not None:
        return micro.collated
    rows = _rows_of(micro)
    columns = {x.shape[1] if x.dim() > 1 else None for x in _given(micro)}
    is_known = is_alone or len(columns) > 1 or columns <= {None, *rows}
    return rows[0] if is_known and len(rows) == 1 else None


def tensors_with_rows(value: Any) -> list[Tensor]:
    """List nested tensors that are not scalars."""
    return [x for x in flatten_tensors(value) if x.dim()]


def _given(micro: MicroBatch) -> list[Tensor]:
    return tensors_with_rows((micro.targets, micro.args, dict(micro.kwargs)))


def _rows_of(micro: MicroBatch) -> list[int]:
    """List the different numbers of rows of its tensors."""
    return [*dict.fromkeys(map(len, _given(micro)))]


def _unknown_samples(micro: MicroBatch, raw: Any) -> TaskError:
    rows = _rows_of(micro)
    what = f"tensors of {' and '.join(map(str, rows))} rows" if rows else "no tensor"
    if len(rows) == 1:
        what += f" and {_given(micro)[0].shape[1]} columns"
    path = path_of_first_tensor(raw)
    count = "batch.num_graphs" if path is None else f"len({path})"
    time_first = "" if path is None else f", or {path}.shape[1] if time comes first"
    return TaskError(
        f"A ready batch has {what}, so it is not known how many samples it holds, over which the "
        f"loss is a mean. Give the function that counts them: Task(items=lambda batch: {count})"
        f"{time_first}."
    )


def path_of_first_tensor(raw: Any, path: str = "batch") -> str | None:
    """Return the expression for the first tensor with rows in a nested batch, or None."""
    if isinstance(raw, Tensor):
        return path if raw.dim() else None
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(raw, Mapping):
        members = ((f"{path}[{key!r}]", value) for key, value in raw.items())
    elif isinstance(raw, (tuple, list)):
        members = ((f"{path}[{index}]", value) for index, value in enumerate(raw))
    elif is_dataclass(raw) and not isinstance(raw, type):
        members = ((f"{path}.{key}", value) for key, value in as_members(raw).items())
    found = (path_of_first_tensor(value, where) for where, value in members)
    return next((where for where in found if where is not None), None)


def only_element(elements: Sequence[Any]) -> Any:
    """Collate one element that is a batch already."""
    (batch,) = elements
    return batch


def as_empty(micro: MicroBatch) -> MicroBatch:
    """Return a micro-batch without items, of a rank that has none while others have."""
    return micro._replace(items=0, samples=0, part_items=tuple(0 for _ in micro.part_items))


def dummy_micro_batch(micro: MicroBatch) -> MicroBatch:
    """Return what a rank without items uses in a manual step; it is not counted.

    It holds one sample, since the user's step may divide by the number.
    """
    return micro._replace(items=1, samples=max(micro.samples, 1))


def zero_loss(outputs: Any) -> Tensor:
    """Return 0 that depends on the outputs, for the backward of a rank without items.

    It is the sum of no elements: 0 times a logit of -inf would be NaN.
    """
    parts = [x[None][:0].sum() for x in flatten_tensors(outputs) if x.requires_grad]
    total = sum(parts[1:], start=parts[0])
    return total.float() if total.dtype.itemsize < torch.float32.itemsize else total
