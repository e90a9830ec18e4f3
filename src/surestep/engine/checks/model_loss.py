"""The loss that a model computes itself: whether it shifts the labels, as the first batch shows."""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch
from surestep.engine.checks.additivity import UnmeasurableError, measuring
from surestep.engine.checks.varied_model import VariedModel, find_last_weights
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.losses.adapt import IGNORED
from surestep.engine.losses.model_loss import extract_loss


def check_shift(
    model: nn.Module, loader: BatchLoader, raw: Any, micro_batch: MicroBatch, mean: float
) -> None:
    """Check that the first label of each row is an item if the loss depends on it, and only then.

    If nothing is ignored, both ways to count agree on the parts of a batch. The model, in eval
    mode, is called again; `mean` is the loss of the micro-batch.
    """
    labels = micro_batch.kwargs.get("labels")
    if not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return
    depends = _depends_on_first(model, loader, micro_batch, mean)
    counts = loader.loss.items(raw, _flip(labels, 0)) != loader.loss.items(raw, labels)
    if depends is not None and depends != counts:
        uses, items = ("uses", "tokens") if depends else ("does not use", "next tokens")
        raise TaskError(
            f"The loss of {type(model).__name__} {uses} the first label of each row, and the items "
            f"were counted differently. Pass Task(items={items!r})."
        )


def _depends_on_first(
    model: nn.Module, loader: BatchLoader, micro: MicroBatch, mean: float
) -> bool | None:
    """Return whether the loss depends on the first labels; None if that cannot be measured.

    A new model may give every token the same loss, and then no label changes the mean.
    """
    labels = micro.kwargs["labels"]
    first = _flip(labels, 0)
    depends = _differs(model, micro, first, mean)
    if loader.layout.ranks == 1:
        if depends:
            return True
        with suppress(UnmeasurableError), measuring():
            if last := find_last_weights(model, micro.args, dict(micro.kwargs)):
                varied = VariedModel(model, last)
                varied.vary(0)
                mean_of_varied = float(extract_loss(varied(*micro.args, **micro.kwargs)))
                return _differs(varied, micro, first, mean_of_varied)
    depends_on_last = _differs(model, micro, _flip(labels, -1), mean)  # each rank calls as often
    return depends if depends or depends_on_last else None


def _flip(labels: Tensor, place: int) -> Tensor:
    """Ignore one label of each row if it was not ignored, and the reverse."""
    flipped = labels.clone()
    flipped[..., place] = torch.where(labels[..., place] == IGNORED, 0, IGNORED)
    return flipped


def _differs(model: Callable[..., Any], micro: MicroBatch, labels: Tensor, mean: float) -> bool:
    loss = extract_loss(model(*micro.args, **{**micro.kwargs, "labels": labels}))
    return not math.isclose(float(loss), mean, rel_tol=1e-6, abs_tol=1e-9)
