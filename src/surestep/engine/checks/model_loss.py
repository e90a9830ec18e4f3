"""The loss that a model computes itself: whether it shifts the labels, as the first batch shows."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.checks.additivity import split_to_vary
from surestep.engine.checks.measured_batch import MeasuredBatch, UnmeasurableError, measuring
from surestep.engine.losses.adapt import IGNORED
from surestep.engine.losses.model_loss import extract_loss
from surestep.engine.plan.not_checked import not_checked


def check_shift(batch: MeasuredBatch) -> None:
    """Check that the first label of each row is an item if the loss depends on it, and only then.

    If nothing is ignored, both ways to count agree on the parts of a batch. The model, in eval
    mode, is called again.
    """
    labels = batch.head.micro_batch.kwargs.get("labels")
    if isinstance(labels, Tensor) and labels.dim() > 1 and not labels.is_floating_point():
        depends, loss = _depends_on_first(batch), batch.head.loss
        if depends is None:
            return not_checked("the items of first labels", "the loss depends on no label")
        counts = loss.items(batch.raw, _flip(labels, 0)) != loss.items(batch.raw, labels)
        if depends != counts:
            uses, items = ("uses", "tokens") if depends else ("does not use", "next tokens")
            raise TaskError(
                f"The loss of {type(batch.model).__name__} {uses} the first label of each row, and "
                f"the items were counted differently. Pass Task(items={items!r})."
            )
    return None


def _depends_on_first(batch: MeasuredBatch) -> bool | None:
    """Return whether the loss depends on the first labels; None if that cannot be measured.

    A new model may give every token the same loss, and then no label changes the mean.
    """
    micro = batch.head.micro_batch
    if batch.has_rows and (varied := batch.varied) is not None:
        rows = split_to_vary(batch).rows
        try:
            outputs = batch.call(rows, 0)
            batch.keep(rows, 0, outputs)  # for the check that the loss adds up
            with measuring():
                args, kwargs, _, _ = batch.part(rows)
                # Of one row: the first labels of all may be a sample of all labels by chance.
                flipped = kwargs["labels"].clone()
                flipped[-1:] = _flip(flipped[-1:], 0)
                return _differs(batch, rows, varied, outputs, args, {**kwargs, "labels": flipped})
        except UnmeasurableError:  # memory ran out, for instance
            pass
    rows, labels, outputs = range(batch.samples), micro.kwargs["labels"], batch.head.outputs
    if batch.calls.draws is not None:
        outputs = batch.run("model", rows, batch.model, *micro.args, **micro.kwargs)
    depends, depends_on_last = (
        _differs(
            *(batch, rows, batch.model, outputs, micro.args),
            {**micro.kwargs, "labels": _flip(labels, place)},
        )
        for place in (0, -1)
    )
    return depends if depends or depends_on_last else None  # each rank calls as often


def _flip(labels: Tensor, place: int) -> Tensor:
    """Ignore one label of each row if it was not ignored, and the reverse."""
    flipped = labels.clone()
    flipped[..., place] = torch.where(labels[..., place] == IGNORED, 0, IGNORED)
    return flipped


def _differs(
    batch: MeasuredBatch,
    rows: Sequence[int],
    model: Callable[..., Any],
    outputs: Any,
    args: Any,
    kwargs: Any,
) -> bool:
    """Return whether the loss differs from that of `outputs` with other labels."""
    found = batch.run("model", rows, model, *args, **kwargs)
    loss, mean = (float(extract_loss(output)) for output in (found, outputs))
    return not math.isclose(loss, mean, rel_tol=1e-6, abs_tol=1e-9)
