"""The loss that a model computes itself: what it is a mean over, proven on the first batch."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.data.batch import MicroBatch
from surestep.engine.data.feed import Feed
from surestep.engine.loss import IGNORED
from surestep.engine.model_loss import value_of


def check_own_loss(
    model: nn.Module, feed: Feed, raw: Any, micro: MicroBatch, whole: Tensor, *, counted: bool
) -> None:
    """Compare a batch with its two parts, and with the batch in which the first labels differ.

    Args:
        model: in eval mode; it is asked three more times.
        feed: counts items.
        raw: the batch, as it was read.
        micro: the same, on the device.
        whole: its loss, summed over its items.
        counted: the items are labels that surestep counts, not a count of the user's own.

    Raises:
        TaskError: the loss is a mean over something else than its items.
    """
    if counted:
        _check_shift(model, feed, raw, micro, float(whole) / micro.items)
    samples, total = micro.samples, 0.0
    if samples < 3:
        return
    # Uneven parts, because a mean of means is right for even ones.
    for rows in (slice(0, samples // 3), slice(samples // 3, samples)):
        part = _cut(raw, rows, samples)
        items = feed.loss.items(part, feed.split(part)[2])
        if items:
            args, kwargs = _cut((micro.args, dict(micro.kwargs)), rows, samples)
            total += float(value_of(model(*args, **kwargs))) * items
    if not math.isclose(total, float(whole), rel_tol=_tolerance(model, whole), abs_tol=1e-6):
        raise TaskError(
            f"The loss that the model computes is not a mean over its items: {samples} samples "
            f"give {float(whole) / micro.items:.6g}, and their two parts put together "
            f"{total / micro.items:.6g}. Say what it is a mean over, Task(items=a function of the "
            "batch); or Task(splits=False) where it compares samples."
        )


def _check_shift(model: nn.Module, feed: Feed, raw: Any, micro: MicroBatch, mean: float) -> None:
    """Turn the first label of each row around: is it counted, and does the loss depend on it?

    Where nothing is ignored, both ways to count agree on the parts of a batch.
    """
    labels = micro.kwargs.get("labels")
    if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return
    turned = labels.clone()
    turned[..., 0] = torch.where(labels[..., 0] == IGNORED, 0, IGNORED)
    loss = value_of(model(*micro.args, **{**micro.kwargs, "labels": turned}))
    depends = not math.isclose(float(loss), mean, rel_tol=1e-6, abs_tol=1e-9)
    counts = feed.loss.items(raw, turned) != feed.loss.items(raw, labels)
    if depends != counts:
        uses, say = ("uses", "tokens") if depends else ("does not use", "next tokens")
        raise TaskError(
            f"The loss of {type(model).__name__} {uses} the first label of each row, and the items "
            f"were counted otherwise. Say Task(items={say!r})."
        )


def _tolerance(model: nn.Module, loss: Tensor) -> float:
    """Return how far sums in another order may be off; half precision has three digits."""
    half = (torch.bfloat16, torch.float16)
    is_half = torch.is_autocast_enabled(loss.device.type)
    is_half |= any(parameter.dtype in half for parameter in model.parameters())
    return 3e-2 if is_half else 1e-4


def _cut(value: Any, rows: slice, samples: int) -> Any:
    """Return some samples of a nested batch; what is not one for each sample stays."""
    if isinstance(value, Tensor):
        return value[rows] if value.dim() and len(value) == samples else value
    if isinstance(value, Mapping):
        return {key: _cut(each, rows, samples) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_cut(each, rows, samples) for each in value)
    return value
