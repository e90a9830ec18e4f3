"""Evaluation: the same shape as a step, without gradients, weighted by items."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import DataError, TaskError
from surestep.engine.data.batch import MicroBatch
from surestep.engine.data.feed import Feed
from surestep.engine.loss import Loss, targets_for
from surestep.engine.metrics import (
    MeanMetric,
    ObjectMetric,
    Value,
    open_metrics,
    seen_by,
    take_logged,
)
from surestep.engine.seed import ModelRandomness, kept_generators


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode, and each back into its own mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class Totals:
    """A loss and metrics, added up on the device over an evaluation."""

    def __init__(self, loss: Loss, metrics: Mapping[str, Any], device: torch.device) -> None:
        self.loss = loss
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.items = 0.0
        self.metrics: list[MeanMetric | ObjectMetric] = open_metrics(metrics, device)

    def compute(self) -> dict[str, Value]:
        """Read the device: the mean loss and each metric; NaN where nothing was counted."""
        divisor = self.items if self.loss.divides else 1.0
        result: dict[str, Value] = {
            "loss": float(self.total) / divisor if divisor else float("nan")
        }
        for metric in self.metrics:
            result |= metric.compute()
        return result


def eval_step(
    model: nn.Module, micro: MicroBatch, totals: Totals, autocast: AbstractContextManager[Any]
) -> None:
    """Add one micro-batch to the totals; where there are metrics, their count is read."""
    loss = totals.loss
    with autocast:
        outputs = model(*micro.args, **micro.kwargs)
        if micro.items:
            try:
                value = loss.value(outputs, targets_for(loss, micro))
            except IndexError as error:  # a target out of range, on a CPU
                raise DataError(
                    f"The loss fails on data that is measured: {error} Look at its targets, whose "
                    "classes must be those of the training data."
                ) from error
            if not (loss.is_sum and isinstance(value, Tensor)):
                value = loss.add_up(value, micro.items)[0]
            totals.total += value
            totals.items += micro.items
    count = count_of(loss, micro) if totals.metrics else 0
    for metric in totals.metrics if count else ():
        seen = seen_by(metric, model, micro)
        metric.update(loss.predictions(outputs) if seen is None else seen, micro.targets, count)


def count_of(loss: Loss, micro: MicroBatch) -> int:
    """Return what a metric's mean is over; samples where there are no targets."""
    return micro.samples if micro.targets is None else loss.count(micro.targets)


def evaluate(
    model: nn.Module,
    feed: Feed,
    loss: Loss,
    metrics: Mapping[str, Any],
    *,
    autocast: AbstractContextManager[Any],
    grad_off: Callable[[], AbstractContextManager[Any]] = torch.no_grad,
) -> dict[str, Value]:
    """Measure the mean loss and the metrics over one part of the data; waits for the device.

    What the batch size is does not matter. `torch.no_grad` is the default because a model that
    keeps a tensor from its forward could not train on with an inference tensor.
    """
    totals = Totals(loss, metrics, feed.device)
    randomness = ModelRandomness(feed.seed, feed.device)
    with eval_mode(model), grad_off(), kept_generators(feed.device):
        for batch in feed.batches(epoch=0):
            for micro in batch.micro_batches:
                randomness.at(-1, micro.position)
                eval_step(model, micro, totals, autocast)
        take_logged()
        return totals.compute()


def evaluate_parts(
    model: nn.Module,
    feeds: Mapping[str, Feed],
    loss: Loss,
    metrics: Mapping[str, Any],
    *,
    autocast: AbstractContextManager[Any],
    grad_off: Callable[[], AbstractContextManager[Any]] = torch.no_grad,
) -> dict[str, Value]:
    """Measure several parts of the data; by "part/metric".

    Raises:
        TaskError: there is something to measure, and no loss to measure it by.
    """
    if feeds and loss.kind == "none":
        raise TaskError("The Task has no loss to measure. Say Task(loss=...).")
    found = {
        part: evaluate(model, feed, loss, metrics, autocast=autocast, grad_off=grad_off)
        for part, feed in feeds.items()
    }
    return {f"{part}/{name}": value for part, each in found.items() for name, value in each.items()}
