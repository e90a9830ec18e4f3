"""The loss that a model computes itself: whether it shifts the labels, as the first batch shows."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.data.batch import MicroBatch
from surestep.engine.data.feed import Feed
from surestep.engine.loss import IGNORED
from surestep.engine.model_loss import value_of


def check_shift(model: nn.Module, feed: Feed, raw: Any, micro: MicroBatch, mean: float) -> None:
    """Turn the first label of each row around: is it counted, and does the loss depend on it?

    Where nothing is ignored, both ways to count agree on the parts of a batch.

    Args:
        model: in eval mode; it is called once more.
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
