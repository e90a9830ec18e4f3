"""The loss that a model computes itself: whether it shifts the labels, as the first batch shows."""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch
from surestep.engine.checks.terms import UnmeasurableError, measuring
from surestep.engine.checks.varied_weights import VariedModel, find_last_weights
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.losses.adapt import IGNORED
from surestep.engine.losses.model_loss import extract_loss


def check_shift(
    model: nn.Module, feed: BatchLoader, raw: Any, micro: MicroBatch, mean: float
) -> None:
    """Turn the first label of each row around: is it counted, and does the loss depend on it?

    Where nothing is ignored, both ways to count agree on the parts of a batch.

    Args:
        model: in eval mode; it is called again.
        feed: counts items.
        raw: the batch, as it was read.
        micro: the same, on the device.
        mean: its loss.

    Raises:
        TaskError: the items are counted otherwise.
    """
    labels = micro.kwargs.get("labels")
    if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return
    turned = _turn(labels, 0)
    depends = _depends(model, feed, micro, mean)
    if depends is None:
        return
    counts = feed.loss.items(raw, turned) != feed.loss.items(raw, labels)
    if depends != counts:
        uses, say = ("uses", "tokens") if depends else ("does not use", "next tokens")
        raise TaskError(
            f"The loss of {type(model).__name__} {uses} the first label of each row, and the items "
            f"were counted otherwise. Say Task(items={say!r})."
        )


def _depends(model: nn.Module, feed: BatchLoader, micro: MicroBatch, mean: float) -> bool | None:
    """Return whether the loss depends on the first labels; None if that cannot be measured.

    A new model may give every token the same loss, and then no label changes the mean.
    """
    labels = micro.kwargs["labels"]
    turned = _turn(labels, 0)
    depends = _differ(model, micro, turned, mean)
    if feed.layout.ranks == 1:
        if depends:
            return True
        with suppress(UnmeasurableError), measuring():
            if last := find_last_weights(model, micro.args, dict(micro.kwargs)):
                varied = VariedModel(model, last)
                varied.vary(0)
                return _differ(varied, micro, turned)
    is_known = _differ(model, micro, _turn(labels, -1), mean)  # each rank calls as often
    return depends if depends or is_known else None


def _turn(labels: Tensor, place: int) -> Tensor:
    """Return labels in which one of each row is ignored if it was not, and the reverse."""
    turned = labels.clone()
    turned[..., place] = torch.where(labels[..., place] == IGNORED, 0, IGNORED)
    return turned


def _differ(
    model: Callable[..., Any], micro: MicroBatch, turned: Tensor, mean: float | None = None
) -> bool:
    """Return whether other labels give another loss than `mean`, the loss of the batch."""
    if mean is None:
        mean = float(extract_loss(model(*micro.args, **micro.kwargs)))
    loss = extract_loss(model(*micro.args, **{**micro.kwargs, "labels": turned}))
    return not math.isclose(float(loss), mean, rel_tol=1e-6, abs_tol=1e-9)
