"""Errors of data that name the sample, its position in the run, and what to do."""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import default_collate

from surestep.base.errors import DataError, SurestepError
from surestep.base.text import format_bytes
from surestep.base.warn import place_of
from surestep.engine.batch import LEAVE_OUT, MicroBatch, explain_targets, flatten_tensors
from surestep.engine.data.columns import describe_data, is_table
from surestep.engine.device import ran_out

_OUT_OF_BOUNDS = re.compile(r"Target (-?\d+) is out of bounds")
_SHARED_MEMORY = re.compile(r"shared memory|</torch_\d+_")  # as torch words its errors
_SHM = "/dev/shm"
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
    if (full := explain_shared_memory(error)) is not None:
        return full
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
    if (full := explain_shared_memory(error)) is not None:
        return full
    if _is_ours(error):
        return error
    epoch, first, wanted = span
    where = f"(epoch {epoch + 1}, positions {first} to {first + len(wanted) - 1})"
    if isinstance(samples, list) and samples and collate is default_collate:
        if (value := _find_not_stacked(samples, wanted, part)) is not None:
            return DataError(f"{value[0]} {where}, and torch cannot make a batch of it. {value[1]}")
        forms = [describe_data(sample, None) for sample in samples]
        usual = Counter(forms).most_common(1)[0][0]
        for index, form in zip(wanted, forms, strict=False):
            if form != usual:
                odd, other = samples[forms.index(form)], samples[forms.index(usual)]
                advice = "Return"
                if isinstance(odd, list) or isinstance(other, list):
                    advice = (
                        "If the data is Python lists, convert them to tensors: torch.tensor(data). "
                        "Otherwise, return"
                    )
                return DataError(
                    f"Sample {index} of the {part} data is {describe_data(odd)}, and most of its "
                    f"batch are {describe_data(other)} {where}: {_shown(error)}. {advice} "
                    "the same parts for every sample, or "
                    "pad them to one length in Task(collate_fn=...); or, if each element of the "
                    "data is a batch already, pass Task(batched=True)."
                )
    names = ", ".join(map(str, wanted[:_LISTED])) + (", ..." if len(wanted) > _LISTED else "")
    did = "put together" if samples else "loaded"
    hint = LEAVE_OUT if samples and all(sample is None for sample in samples) else ""
    return DataError(
        f"Samples {names} of the {part} data could not be {did} {where}: {_shown(error)}.{hint}"
    )


def _find_not_stacked(
    samples: Sequence[Any], indices: Sequence[int], part: str
) -> tuple[str, str] | None:
    """Return what `default_collate` cannot stack, where it is, and what to do; else None."""
    found = zip(indices, map(_first_not_stacked, samples), strict=False)
    bad = [(index, value) for index, value in found if value is not None]
    if not bad:
        return None
    index, (path, value) = bad[0]
    place = f"Part {path} of sample" if path else "Sample"
    if value is not None:
        return f"{place} {index} of the {part} data is {describe_data(value)}", _convert(value)
    if len(bad) < len(samples):
        leave = f", or leave it out: exclude_samples=[{index}]" if part == "train" else ""
        fix = f"Return what the other samples have there{leave}."
    elif path:
        fix = (
            "Return a tensor or a number there, or leave that part out. If the loss needs no "
            "targets, return the inputs alone and pass Task(inputs=lambda batch: (batch, None))."
        )
    else:
        fix = "Return the sample from __getitem__: (x, y)."
    return f"{place} {index} of the {part} data is {describe_data(value)}", fix


def _first_not_stacked(sample: Any, path: str = "") -> tuple[str, Any] | None:
    """Return the first value in a sample that torch cannot stack, and its path."""
    if isinstance(sample, Mapping):
        parts = [(f"{path}[{name!r}]", sample[name]) for name in sample]
    elif isinstance(sample, (tuple, list)):
        parts = [(f"{path}[{index}]", value) for index, value in enumerate(sample)]
    else:
        is_stacked = isinstance(sample, (Tensor, np.ndarray, np.generic, int, float, str, bytes))
        return None if is_stacked else (path, sample)
    return next(filter(None, (_first_not_stacked(value, name) for name, value in parts)), None)


def _convert(value: Any) -> str:
    """Return how to convert a value that torch cannot stack."""
    if type(value).__module__.startswith("PIL."):
        return (
            "Convert the image in __getitem__: torchvision.transforms.functional.to_tensor(image), "
            "or torch.from_numpy(numpy.array(image))."
        )
    if is_table(value):
        return "Convert it in __getitem__: torch.tensor(row.to_numpy())."
    return "Convert it to a tensor in __getitem__, or make the batch in Task(collate_fn=...)."


def explain_shared_memory(error: BaseException) -> DataError | None:
    """Return the error for a full /dev/shm, through which data workers pass tensors; else None."""
    if not isinstance(error, (RuntimeError, OSError)) or not _SHARED_MEMORY.search(str(error)):
        return None
    size = ""
    with suppress(OSError):
        size = f" of {format_bytes(shutil.disk_usage(_SHM).total)}"
    return DataError(
        f"{_SHM}{size} is too small for the batches that data workers load: {error}. Enlarge it "
        "(docker run --shm-size 2g), or use fewer data.num_workers or a smaller "
        "data.prefetch_factor; data.num_workers=0 does not need it."
    )


def name_stream(error: Exception, epoch: int, position: int) -> Exception:
    """Return an error of a stream with how far it was read."""
    if (full := explain_shared_memory(error)) is not None:
        return full
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


def explain_target(
    error: IndexError, micro_batches: Iterable[MicroBatch], order: Tensor | None, where: str
) -> DataError | None:
    """Return torch's error for a class out of range with the name of the sample; None for others.

    `order` is the index of the sample at each position; None is the stored order.
    """
    match = _OUT_OF_BOUNDS.search(str(error))
    if match is None:
        return None
    target = int(match[1])
    names = (_find_target(micro, target, order) for micro in micro_batches)
    name = next(filter(None, names), "the batch")
    return DataError(
        f"The target {target} of {name} is out of range, at {where}: the model has no output for "
        "that class. Correct it, mark what to ignore by the loss's ignore_index (-100), or give "
        "the model more outputs."
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
    """Check that the targets of the first batch hold a tensor, for a loss of classes."""
    is_other = targets is None or isinstance(targets, Mapping) or flatten_tensors(targets)
    if kind == "classes" and not is_other:
        raise DataError(explain_targets(targets, "the loss"))
