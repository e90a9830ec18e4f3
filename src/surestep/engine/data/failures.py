"""Errors of data that say which sample failed, where in the run, and what to do about it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import default_collate

from surestep.base.errors import DataError, SurestepError
from surestep.base.warn import place_of
from surestep.engine.batch import MicroBatch, flatten_tensors
from surestep.engine.device import ran_out

_OUT_OF_BOUNDS = re.compile(r"Target (-?\d+) is out of bounds")
_Kind = TypeVar("_Kind")
_NAMED = 8  # samples that an error lists


class Failed(NamedTuple):
    """What a worker returns for a micro-batch that it could not load.

    An exception that crosses processes arrives as text with the worker's traceback in it.
    """

    text: str


def checked(batch: Any) -> Any:
    """Return a batch that was loaded.

    Raises:
        DataError: a worker could not load it.
    """
    if type(batch) is Failed:
        raise DataError(batch.text)
    return batch


def name_sample(error: Exception, part: str, index: int, epoch: int, position: int) -> Exception:
    """Return an error of loading a sample as one that names the sample.

    Args:
        error: of the user's dataset.
        part: of the data: "train", "val".
        index: of the sample in the dataset.
        epoch: from 0.
        position: of the sample in the order of the epoch.
    """
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
    place: tuple[int, int, Sequence[int]],
    samples: Sequence[Any] = (),
    collate: Callable[..., Any] | None = None,
) -> Exception:
    """Return an error of loading or collating several samples as one that names them.

    Args:
        error: of the user's `__getitems__` or `collate_fn`.
        part: of the data.
        place: epoch from 0, first position, and the samples' indices in the dataset.
        samples: as they were loaded; empty if loading them together failed.
        collate: what failed on them. Only torch's own needs samples of one shape.
    """
    if _is_ours(error):
        return error
    epoch, first, wanted = place
    where = f"(epoch {epoch + 1}, positions {first} to {first + len(wanted) - 1})"
    odd = _odd_sample(wanted, samples, part) if collate is default_collate else None
    if odd is not None:
        return DataError(f"{odd[0]} {where}: {_shown(error)}. {odd[1]}")
    named = ", ".join(map(str, wanted[:_NAMED])) + (", ..." if len(wanted) > _NAMED else "")
    did = "put together" if samples else "loaded"
    return DataError(
        f"Samples {named} of the {part} data could not be {did} {where}: {_shown(error)}."
    )


def name_stream(error: Exception, epoch: int, place: int) -> Exception:
    """Return an error of a stream as one that says how far it was read."""
    if _is_ours(error):
        return error
    return DataError(
        f"The stream failed at its sample {place} (from 0) of epoch {epoch + 1}: {_shown(error)}."
    )


def _is_ours(error: Exception) -> bool:
    return isinstance(error, SurestepError) or ran_out(error)


def _shown(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".rstrip(".")
    where = place_of(error)
    return f"{text} ({where})" if where else text


def _odd_sample(wanted: Sequence[int], samples: Sequence[Any], part: str) -> tuple[str, str] | None:
    """Name the first sample unlike most of its batch, and say what to do; None if all are alike."""
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
        tuple(tuple(each.shape) for each in flatten_tensors(sample)) for sample in sorted_samples
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
    """Return the first sample that is not of the most common kind, its kind, and that one."""
    if len(set(kinds)) < 2:
        return None
    usual = Counter(kinds).most_common(1)[0][0]
    odd = ((index, kind) for index, kind in zip(wanted, kinds, strict=False) if kind != usual)
    first = next(odd, None)  # None if the odd one is beyond the samples that were wanted
    return None if first is None else (*first, usual)


def _kind(sample: Any) -> str:
    """Describe a sample in words: its class, and how many parts it has or which."""
    name = type(sample).__name__
    if isinstance(sample, Mapping):
        return f"a {name} of {', '.join(map(repr, _sort_keys(sample)))}"
    return f"a {name} of {len(sample)}" if isinstance(sample, (tuple, list)) else f"a {name}"


def _sort_keys(sample: Any) -> Any:
    """Sort the keys of dicts, whose order torch's `default_collate` ignores."""
    if isinstance(sample, Mapping):
        return {key: _sort_keys(sample[key]) for key in sorted(sample, key=repr)}
    return [_sort_keys(each) for each in sample] if isinstance(sample, (tuple, list)) else sample


def _listed(shapes: Iterable[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))


def explain_target(
    error: IndexError, micro_batches: Iterable[MicroBatch], order: Tensor | None, where: str
) -> DataError | None:
    """Return torch's error for a class that there is not as one that names the sample.

    Args:
        error: of cross-entropy on a CPU.
        micro_batches: one of them has the target.
        order: index of the sample at each position; None is the stored order.
        where: the step and epoch, or the part that is measured.
    """
    match = _OUT_OF_BOUNDS.search(str(error))
    if match is None:
        return None
    target = int(match[1])
    for micro in micro_batches:
        for tensor in flatten_tensors(micro.targets):
            rows = (tensor == target).flatten(1).any(1) if tensor.dim() > 1 else tensor == target
            one_each = tensor.dim() > 0 and len(tensor) == micro.samples and not micro.is_ready
            if (one_each or (tensor.dim() and micro.is_ready)) and bool(rows.any()):
                row = int(torch.nonzero(rows)[0])
                position = micro.position + (row if one_each else 0)
                known = order is None or position < len(order)
                index = position if order is None else int(order[position]) if known else None
                named = f"sample {index} (position {position})" if known else f"row {position}"
                if not one_each:  # a ready-made batch: it counts as one sample of the data
                    named = f"row {row} of batch {index}" if known else f"row {row} of its batch"
                what_to_do = (
                    "Correct the target, or mark what to ignore by the loss's ignore_index (-100)."
                    if target < 0
                    else "Correct the target, or give the model more outputs."
                )
                return DataError(
                    f"The target {target} of {named} is out of range, at {where}: the model has "
                    f"no output for that class. {what_to_do}"
                )
    return DataError(f"The target {target} is out of range, at {where}.")


def check_targets(targets: Any, kind: str) -> None:
    """Check that the targets of the first batch hold a tensor, for a loss that compares tensors.

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
        "Say which part is which: Task(inputs=lambda batch: (batch[0], batch[1]))."
    )
