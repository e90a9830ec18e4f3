"""A loss as (sum, items): what a step adds up, and what it divides by once.

People write losses that return a mean. A mean over a micro-batch cannot be put together with
another one unless it is known what it is a mean over, so each loss is turned into a sum with its
true denominator: unmasked targets, the sum of their class weights, elements, or samples.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch, batch_size_of
from surestep.engine.losses.base import IGNORED as IGNORED
from surestep.engine.losses.base import Loss as Loss
from surestep.engine.losses.base import LossFunction as LossFunction
from surestep.engine.losses.base import LossModule, WeightedLoss
from surestep.engine.losses.classification import MultiClass
from surestep.engine.losses.multi import combine_losses, error_prefix
from surestep.engine.losses.registry import get_loss
from surestep.engine.losses.torch_losses import FUNCTIONS, from_torch


def as_loss(
    loss: LossFunction | str, items: str | Callable[[Any], float], reduction: str = "mean"
) -> Loss:
    """Turn what the user gave into a Loss.

    Args:
        loss: a loss of the table or its name, a torch loss module or function, or any callable
            that returns a mean or a sum.
        items: of a callable that is not torch's: "samples", "tokens" or a function of the batch.
        reduction: of such a callable: "mean" over its items, or "sum", which nothing divides.

    Raises:
        TaskError: no such name, `reduction="none"`, or unknown words for `items` or `reduction`.
    """
    check_reduction(reduction)
    given = get_loss(loss) if isinstance(loss, str) else loss
    given = FUNCTIONS.get(given, lambda: given)()
    known = None
    if isinstance(given, LossModule):
        known = _of_table(given)
    elif isinstance(given, nn.Module):
        known = from_torch(given)
    if known is not None and items != "samples":
        raise TaskError(
            f"items={items!r} is said, but {known.label} brings its own denominator. "
            "Leave items out, or wrap the loss in a function that returns a mean."
        )
    if known is not None and reduction != "mean":
        raise TaskError(
            f"reduction={reduction!r} is set, but {known.label} brings its own. Leave reduction "
            "out, or wrap the loss in a function that returns a sum."
        )
    return known or Loss(
        given,
        is_sum=reduction == "sum",
        items=_items_of_callable(items),
        count=_unmasked if items == "tokens" else batch_size_of,
        kind="other",
        divides=reduction != "sum",
        label=getattr(given, "__name__", type(given).__name__),
        divides_by=_divisor(items, reduction),
        module=given if isinstance(given, nn.Module) else None,
    )


def check_reduction(reduction: object) -> None:
    """Check the reduction of a loss.

    Raises:
        TaskError: neither "mean" nor "sum".
    """
    if reduction not in ("mean", "sum"):
        raise TaskError(f"reduction={reduction!r} is not known. Use 'mean' or 'sum'.")


def _divisor(items: str | Callable[[Any], float], reduction: str) -> str:
    if reduction == "sum":
        return "nothing"
    return f"{items}, said of it" if isinstance(items, str) else "what items() counts"


def as_losses(
    losses: Mapping[str, LossFunction | str],
    items: Mapping[str, str | Callable[[Any], float]],
    weights: Mapping[str, float],
    reductions: Mapping[str, str],
) -> Loss:
    """Turn several losses by name into their weighted sum; weight 1 where none is said.

    Raises:
        TaskError: of one of them, as of a loss alone.
    """
    parts = []
    for name, given in losses.items():
        with error_prefix(name):
            loss = as_loss(given, items.get(name, "samples"), reductions.get(name, "mean"))
        parts.append(WeightedLoss(name, loss, float(weights.get(name, 1.0))))
    return combine_losses(parts)


def items_only_loss(items: str | Callable[[Any], float]) -> Loss:
    """Return what counts the items of a Task whose step has its own losses.

    Args:
        items: "samples", or a function of the batch.

    Raises:
        TaskError: other words.
    """
    if isinstance(items, str) and items != "samples":
        raise TaskError(
            f"items={items!r} takes targets, and a Task without a loss has none. Use 'samples' or "
            "a function of the batch."
        )
    return Loss(
        _not_there,
        is_sum=False,
        items=(lambda batch, _: batch_size_of(batch))
        if isinstance(items, str)
        else _counted(items),
        count=batch_size_of,
        kind="none",
        label="none: the step brings its own",
        divides_by="samples" if isinstance(items, str) else "what items() counts",
    )


def _not_there(outputs: Any, targets: Any) -> Tensor:
    raise AssertionError("evaluations and checks ask for the kind before")


def _counted(count: Callable[[Any], float]) -> Callable[[Any, Any], float]:
    return lambda batch, _: float(count(batch))


def _of_table(given: LossModule) -> Loss:
    """Copy the loss, since what it learns from one Task's data is no other's."""
    own = copy.deepcopy(given)
    classes = isinstance(own, MultiClass)
    return Loss(
        own.total,
        is_sum=True,
        items=own.items,
        count=own.count,
        kind="classes" if classes else "table",
        label=repr(own),
        divides_by=own.doc.divides_by,
        check=own.check,
        classes=own.count_classes if isinstance(own, MultiClass) else None,
        module=own,
        is_separable=own.is_separable,
    )


def with_teacher(loss: Loss, teacher: nn.Module) -> Loss:
    """Return the loss with a frozen model, whose outputs it is given beside the targets."""
    return replace(loss, teacher=teacher)


def loss_targets(loss: Loss, micro: MicroBatch) -> Any:
    """Return what the loss is given: the targets, and what the teacher says where there is one."""
    if loss.teacher is None:
        return micro.targets
    return loss.with_teacher_outputs(micro.args, micro.kwargs, micro.targets)


def _items_of_callable(items: str | Callable[[Any], float]) -> Callable[[Any, Any], float]:
    if items == "samples":
        return lambda _, targets: batch_size_of(targets)
    if items == "tokens":
        return lambda _, targets: _unmasked(targets)
    if isinstance(items, str):
        raise TaskError(
            f"items={items!r} is not known. Use 'samples', 'tokens' or a function of the batch."
        )
    return _counted(items)


def _unmasked(targets: Tensor) -> int:
    return int((targets != IGNORED).sum())
