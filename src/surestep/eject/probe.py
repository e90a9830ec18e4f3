"""What the source of a recipe does not show: tried on the first samples of the data."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import RecipeError
from surestep.eject.data import load_first
from surestep.engine.losses.base import HALF, Loss
from surestep.engine.metrics.whole_set import WholeSet
from surestep.engine.model.precision import autocast
from surestep.trainer.planning import PreparedTask


def find_metric_kinds(planned: PreparedTask) -> dict[str, str]:
    """Return for each metric which part of `Parts` it belongs to.

    Args:
        planned: whose model, loss and metrics are tried.

    Raises:
        RecipeError: a script would compute something else.
    """
    task, plan, model = planned.task, planned.plan, planned.model
    data = task.train if task.val is None else task.val
    x, y = load_first(data, task.collate_fn, plan.validation_batch_size)
    model.eval()
    before = torch.get_rng_state()
    with torch.no_grad(), autocast(plan):
        outputs = model(x)
        if planned.loss.kind == "other":
            _check_loss(planned.loss, planned.loss.value(outputs, y))
    if not torch.equal(before, torch.get_rng_state()):
        raise RecipeError(
            "The model draws random numbers in eval mode, and eject does not print their seeds. "
            "Leave that out in eval mode: if self.training: ..."
        )
    model.train()
    if task.val is None:
        return {}
    _check_counts(planned.loss, y)
    return {name: _kind_of(name, one, outputs, y) for name, one in task.metrics.items()}


def _check_loss(loss: Loss, value: Any) -> None:
    if isinstance(value, Mapping):
        raise RecipeError(
            f"The loss {loss.label} returns a dict of terms, which eject does not print. Return "
            "their sum."
        )
    if value.dtype in HALF:
        raise RecipeError(
            f"The loss {loss.label} returns a number of 16 bits. Use outputs.float() in it."
        )


def _check_counts(loss: Loss, targets: Tensor) -> None:
    """Check that a mean metric is over samples, or over what the loss is a mean over."""
    counted = loss.count(targets)
    if counted not in (len(targets), loss.items(None, targets)):
        raise RecipeError(
            f"Metrics are means over {counted} targets, and the loss {loss.label} is over their "
            "weights. Leave the class weights out, or the metrics."
        )


def _kind_of(name: str, metric: Any, outputs: Any, targets: Tensor) -> str:
    with torch.no_grad():
        value = metric(outputs, targets)
    is_pair = isinstance(value, tuple) and len(value) == 2
    try:
        for number in value if is_pair else (value,):
            float(number)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(
            f"metrics[{name!r}] returns a {type(value).__name__}, and eject prints metrics that "
            "are numbers, or pairs of a sum and a count."
        ) from error
    if isinstance(metric, WholeSet):
        if is_pair or not isinstance(outputs, Tensor):
            raise RecipeError(
                f"metrics[{name!r}] is of a whole set, and eject prints those of one tensor of "
                "outputs that return a number."
            )
        return "of_all"
    return "ratios" if is_pair else "metrics"
