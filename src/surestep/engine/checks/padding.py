"""Padding that counts: what the loss and its items give if fewer samples are collated."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.batch import flatten_tensors
from surestep.engine.checks.measured_batch import MeasuredBatch, UnmeasurableError, measuring
from surestep.engine.checks.samples import is_per_sample, split_in_two
from surestep.engine.losses.adapt import IGNORED
from surestep.engine.plan.not_checked import not_checked

CANNOT_COLLATE = "fewer samples of the first batch cannot be collated"
_SAME = 1e-3  # relative: the outputs of fewer samples round differently


def check_padded_items(batch: MeasuredBatch) -> None:
    """Warn if the items of a loss that counts its targets depend on the padding.

    A model may learn to predict padding, so this is not an error.
    """
    targets, what = batch.head.micro_batch.targets, f"the padding of {batch.what}"
    if any(tensor.dim() > 1 for tensor in flatten_tensors(targets)):
        rows = split_in_two(batch.few).all_rows()
        if not batch.can_collate:
            return not_checked(what, CANNOT_COLLATE)
        try:
            whole, *parts = (batch.part(some).items for some in rows)
        except Exception:  # of the user's functions
            return not_checked(what, CANNOT_COLLATE)
        if not math.isclose(whole, sum(parts), rel_tol=1e-6):
            if batch.draws(rows[1]):
                return not_checked(what, "collate_fn draws random numbers")
            warn(_describe_items(batch, whole, sum(parts)))
    return None


def report_padding(batch: MeasuredBatch, whole: Any, parts: Any) -> None:
    """Report that a loss differs if fewer samples are collated, by its `whole` and its `parts`.

    Raises:
        TaskError: its items, or the loss itself, count padding.
    """
    rows = split_in_two(batch.few).all_rows()
    what = f"the padding of {batch.what}"
    if batch.draws(rows[1]):
        return not_checked(what, "collate_fn draws random numbers")
    items = sum(part.items for part in parts)
    if not math.isclose(whole.items, items, rel_tol=1e-6):
        raise TaskError(_describe_items(batch, whole.items, items))
    divisor = whole.items if batch.head.loss.divides else 1.0
    together = sum(part.total for part in parts) / divisor
    gives = (
        f"The loss of {whole.samples} samples is {whole.total / divisor:.6g}, but {together:.6g} "
        f"if collate_fn collates {len(parts)} parts of them: "
    )
    if _are_outputs_same(batch):
        raise TaskError(
            f"{gives}it is computed from padding too. Leave out what is padding, such as by "
            "ignore_index=-100 and a padding value of -100, or pad all samples to one length."
        )
    return warn(
        f"{gives}what the model returns depends on the padding, so an update depends on "
        "micro_batch_size. Pass a mask to the model, or pad all samples to one length."
    )


def _are_outputs_same(batch: MeasuredBatch) -> bool:
    """Return whether the outputs of a part are those of all samples, without the padding."""
    whole, part, _ = split_in_two(batch.few).all_rows()
    try:
        outputs = batch.call(whole), batch.call(part)
    except UnmeasurableError:
        return False
    if not (is_per_sample(outputs[0], len(whole)) and is_per_sample(outputs[1], len(part))):
        return False
    with measuring():
        return all(
            torch.allclose(one[tuple(map(slice, other.shape))], other, rtol=_SAME, atol=_SAME)
            for one, other in zip(*map(flatten_tensors, outputs), strict=True)
        )


def _describe_items(batch: MeasuredBatch, whole: float, parts: float) -> str:
    """Return that items count padding, and what to do."""
    value = _padding_of(batch)
    count = "a function of the batch that counts them without padding"
    remedy = "Leave padding out of the loss, such as by a mask in a function,"
    if isinstance(value, int):  # no other target need have this value
        count = describe_count(batch, value)
        remedy = "Pad targets with -100, or leave padding out of the loss"
    shown = "" if value is None else f", which is {value:g},"
    return (
        f"{batch.few} samples have {whole:g} items if they are collated together, but {parts:g} if "
        f"collate_fn collates 2 parts of them: padding{shown} counts, so an update depends on "
        f"micro_batch_size. {remedy} and set Task(items={count})."
    )


def _padding_of(batch: MeasuredBatch) -> float | None:
    """Return the value that only the targets of more samples have at their end, if it is one."""
    whole, part, _ = split_in_two(batch.few).all_rows()
    one, other = batch.part(whole).targets, batch.part(part).targets
    if not isinstance(one, Tensor) or one.dim() < 2 or one.dim() != other.dim():
        return None
    is_more = torch.ones_like(one, dtype=torch.bool)
    is_more[tuple(map(slice, other.shape))] = False
    found = one[: len(other)][is_more[: len(other)]].unique()
    return found.item() if len(found) == 1 else None


def find_paddings(targets: Any) -> list[int]:
    """Return the values of integer targets that may mean that they are ignored."""
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.is_complex():
        return []
    found = [IGNORED]
    if targets.dim() and targets.numel():
        last = (targets, targets[-1], targets[..., -1])
        found += [int(tensor.flatten().mode().values) for tensor in last]
    return list(dict.fromkeys(found))


def describe_count(batch: MeasuredBatch, value: int) -> str:
    """Return the function that counts the targets of a batch that are not a value."""
    raw, targets = batch.raw, batch.head.micro_batch.targets
    named = raw if isinstance(raw, Mapping) else dict(enumerate(raw if type(raw) is tuple else ()))
    for name, tensor in named.items():
        if isinstance(tensor, Tensor) and torch.equal(tensor, targets.to(tensor.device)):
            return f"lambda batch: int((batch[{name!r}] != {value}).sum())"
    return f"a function that counts the targets that are not {value}"
