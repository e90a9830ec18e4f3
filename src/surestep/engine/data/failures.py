"""Errors of data that name the sample, its position in the run, and what to do."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from torch import Tensor
from torch.utils.data import default_collate

from surestep.base.errors import DataError, SurestepError
from surestep.base.warn import place_of
from surestep.engine.batch import MicroBatch, flatten_tensors
from surestep.engine.device import ran_out

_OUT_OF_BOUNDS = re.compile(r"Target (-?\d+) is out of bounds")
_Kind = TypeVar("_Kind")
_LISTED = 8  # samples of an error


class Failed(NamedTuple):
    """An error of a worker as text; torch would add a traceback."""

    text: str


def checked(batch: Any) -> Any:
    """Return a loaded batch; raise DataError for one that a worker could not load."""
    if type(batch) is Failed:
        raise DataError(batch.text)
    return batch


def name_sample(error: Exception, part: str, index: int, epoch: int, position: int) -> Exception:
    """Return an error of loading sample `index` at a position of an epoch, with its name."""
    if _is_ours(error):
        return error
    leave = f" or leave it out: exclude_samples=[{index}]" if part == "train" else ""
    return DataError(
        f"Sample {index} of the {part} data could not be loaded (epoch {epoch + 1}, position "
        f"{position}): {_shown(error)}. Correct it{leave}."
    )


def name_samples(
    error: Exception,
    part: str,
    span: tuple[int, int, Sequence[int]],
    samples: Sequence[Any] = (),
    collate: Callable[..., Any] | None = None,
) -> Exception:
    """Return an error of `__getitems__` or `collate_fn` with the names of the samples.

    `span` is (epoch, first position, indices); `samples` is empty if loading them failed.
    """
    if _is_ours(error):
        return error
    epoch, first, wanted = span
    where = f"(epoch {epoch + 1}, positions {first} to {first + len(wanted) - 1})"
    odd = _odd_sample(wanted, samples, part) if collate is default_collate else None
    if odd is not None:
        return DataError(f"{odd[0]} {where}: {_shown(error)}. {odd[1]}")
    names = ", ".join(map(str, wanted[:_LISTED])) + (", ..." if len(wanted) > _LISTED else "")
    did = "put together" if samples else "loaded"
    return DataError(
        f"Samples {names} of the {part} data could not be {did} {where}: {_shown(error)}."
    )


def name_stream(error: Exception, epoch: int, position: int) -> Exception:
    """Return an error of a stream with how far it was read."""
    if _is_ours(error):
        return error
    return DataError(
        f"The stream failed at its sample {position} (from 0) of epoch {epoch + 1}: "
        f"{_shown(error)}."
    )


def _is_ours(error: Exception) -> bool:
    return isinstance(error, SurestepError) or ran_out(error)


def _shown(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".rstrip(".")
    where = place_of(error)
    return f"{text} ({where})" if where else text


def _odd_sample(wanted: Sequence[int], samples: Sequence[Any], part: str) -> tuple[str, str] | None:
    """Describe the first sample that differs from most of its batch, and the fix."""
    whose = f"of the {part} data"
    kinds = [_kind(sample) for sample in samples]
    if of_kind := _first_odd(wanted, kinds):
        index, kind, usual_kind = of_kind
        return (
            f"Sample {index} {whose} is {kind}, and the others of its batch are {usual_kind}",
            "Return the same parts for every sample.",
        )
    sorted_samples = map(_sort_keys, samples)
    shapes = [
        tuple(tuple(tensor.shape) for tensor in flatten_tensors(sample))
        for sample in sorted_samples
    ]
    if of_shape := _first_odd(wanted, shapes):
        index, odd, usual = of_shape
        return (
            f"Sample {index} {whose} has shapes {_listed(odd)}, and the others of its batch have "
            f"{_listed(usual)}",
            "Pad them to one length in Task(collate_fn=...); or, if each element of the data is a "
            "batch already, pass Task(batched=True).",
        )
    return None


def _first_odd(wanted: Sequence[int], kinds: Sequence[_Kind]) -> tuple[int, _Kind, _Kind] | None:
    """Return the first sample of an uncommon kind, its kind, and the most common one."""
    if len(set(kinds)) < 2:
        return None
    usual = Counter(kinds).most_common(1)[0][0]
    odd = ((index, kind) for index, kind in zip(wanted, kinds, strict=False) if kind != usual)
    first = next(odd, None)  # None if the odd one is beyond the samples that were wanted
    return None if first is None else (*first, usual)


def _kind(sample: Any) -> str:
    """Describe a sample: its type, and its number of parts or their names."""
    name = type(sample).__name__
    if isinstance(sample, Mapping):
        return f"a {name} of {', '.join(map(repr, _sort_keys(sample)))}"
    return f"a {name} of {len(sample)}" if isinstance(sample, (tuple, list)) else f"a {name}"


def _sort_keys(sample: Any) -> Any:
    """Sort the keys of dicts, whose order torch's `default_collate` ignores."""
    if isinstance(sample, Mapping):
        return {key: _sort_keys(sample[key]) for key in sorted(sample, key=repr)}
    return [_sort_keys(part) for part in sample] if isinstance(sample, (tuple, list)) else sample


def _listed(shapes: Iterable[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))


def explain_target(
    error: IndexError, micro_batches: Iterable[MicroBatch], order: Tensor | None, where: str
) -> DataError | None:
    """Return torch's error for a class out of range with the name of the sample; None for others.

    Args:
        error: of cross-entropy on a CPU.
        micro_batches: one of them has the target.
        order: index of the sample at each position; None is the stored order.
        where: the step and epoch, or the split that is measured.
    """
    match = _OUT_OF_BOUNDS.search(str(error))
    if match is None:
        return None
    target = int(match[1])
    name = next(filter(None, (_find_target(one, target, order) for one in micro_batches)), None)
    if name is None:
        return DataError(f"The target {target} is out of range, at {where}.")
    what_to_do = (
        "Correct the target, or mark what to ignore by the loss's ignore_index (-100)."
        if target < 0
        else "Correct the target, or give the model more outputs."
    )
    return DataError(
        f"The target {target} of {name} is out of range, at {where}: the model has no output for "
        f"that class. {what_to_do}"
    )


def _find_target(micro: MicroBatch, target: int, order: Tensor | None) -> str | None:
    """Return the name of the sample of a micro-batch that has a target, or None."""
    for tensor in flatten_tensors(micro.targets):
        has_rows = tensor.dim() > 0 and (micro.is_ready or len(tensor) == micro.samples)
        if not has_rows or not bool((tensor == target).any()):
            continue
        row = int((tensor == target).nonzero()[0, 0])
        position = micro.position + (0 if micro.is_ready else row)
        is_known = order is None or position < len(order)
        index = position if order is None or not is_known else int(order[position])
        if micro.is_ready:  # a ready batch is one sample of the data
            return f"row {row} of batch {index}" if is_known else f"row {row} of its batch"
        return f"sample {index} (position {position})" if is_known else f"row {position}"
    return None


def check_targets(targets: Any, kind: str) -> None:
    """Check that the targets of the first batch hold a tensor, for a loss of classes.

    Raises:
        DataError: they hold none, such as the paths of `(image, label, path)` samples.
    """
    if (
        kind != "classes"
        or flatten_tensors(targets)
        or targets is None
        or isinstance(targets, Mapping)
    ):
        return
    shown = repr(targets if not isinstance(targets, (tuple, list)) else targets[0])
    raise DataError(
        f"The last part of a batch is taken as the targets, and it holds no tensor: {shown:.60}. "
        "Set the parts: Task(inputs=lambda batch: (batch[0], batch[1]))."
    )
