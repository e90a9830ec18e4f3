"""Turn what the user passes as loss into a Loss: a sum with its true denominator.

Most losses return a mean. Means over micro-batches can only be combined if it is known what they
are over: targets that are not ignored, the sum of their class weights, elements, or samples.
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
from surestep.engine.losses.base import LossModule, WeightedLoss, never_called
from surestep.engine.losses.classification import MultiClass
from surestep.engine.losses.multi import combine_losses, error_prefix
from surestep.engine.losses.registry import get_loss
from surestep.engine.losses.torch_losses import FUNCTIONS, from_torch

Items = str | Callable[[Any], float]


def as_loss(loss: LossFunction | str, items: Items, reduction: str = "mean") -> Loss:
    """Turn one loss into a Loss.

    Args:
        loss: one of surestep's losses or its name, a torch loss module or function, or any callable
            that returns a mean or a sum.
        items: of a callable that is not torch's: "samples", "tokens" or a function of the batch.
        reduction: of such a callable: "mean" over its items, or "sum", which nothing divides.

    Raises:
        TaskError: an unknown name, `reduction="none"`, or an unknown value of `items` or
            `reduction`.
    """
    check_reduction(reduction)
    given = get_loss(loss) if isinstance(loss, str) else loss
    given = FUNCTIONS.get(given, lambda: given)()
    known = None
    if isinstance(given, LossModule):
        known = _from_module(given)
    elif isinstance(given, nn.Module):
        known = from_torch(given)
    if known is not None:
        for option, value, default in (
            ("items", items, "samples"),
            ("reduction", reduction, "mean"),
        ):
            if value != default:
                raise TaskError(
                    f"{option}={value!r} is set, but {known.label} brings its own. Leave {option} "
                    "out, or wrap the loss in a function."
                )
        return known
    if isinstance(items, str) and items not in ("samples", "tokens"):
        raise TaskError(
            f"items={items!r} is not known. Use 'samples', 'tokens' or a function of the batch."
        )
    count = _count_unmasked if items == "tokens" else batch_size_of
    return Loss(
        given,
        is_sum=reduction == "sum",
        items=count_items(items) if callable(items) else lambda _, targets: count(targets),
        count=count,
        kind="other",
        divides=reduction != "sum",
        label=getattr(given, "__name__", type(given).__name__),
        divides_by=describe_divisor(items, reduction, f"{items}, as set"),
        module=given if isinstance(given, nn.Module) else None,
    )


def check_reduction(reduction: object) -> None:
    """Check the reduction of a loss.

    Raises:
        TaskError: neither "mean" nor "sum".
    """
    if reduction not in ("mean", "sum"):
        raise TaskError(f"reduction={reduction!r} is not known. Use 'mean' or 'sum'.")


def describe_divisor(items: Items, reduction: str, default: str) -> str:
    """Return what a loss divides by, for messages; `default` if `items` is not a function."""
    if reduction == "sum":
        return "nothing"
    return "what items() counts" if callable(items) else default


def count_items(count: Callable[[Any], float]) -> Callable[[Any, Any], float]:
    """Return the user's function of a batch as a function of batch and targets."""
    return lambda batch, _: float(count(batch))


def as_losses(
    losses: Mapping[str, LossFunction | str],
    items: Mapping[str, Items],
    weights: Mapping[str, float],
    reductions: Mapping[str, str],
) -> Loss:
    """Turn several losses by name into their weighted sum; a weight that is not set is 1.

    Raises:
        TaskError: as for a single loss.
    """
    parts = []
    for name, given in losses.items():
        with error_prefix(name):
            loss = as_loss(given, items.get(name, "samples"), reductions.get(name, "mean"))
        parts.append(WeightedLoss(name, loss, float(weights.get(name, 1.0))))
    return combine_losses(parts)


def items_only_loss(items: Items) -> Loss:
    """Return what counts the items of a Task whose step computes its own losses.

    Args:
        items: "samples", or a function of the batch.

    Raises:
        TaskError: any other text.
    """
    if isinstance(items, str) and items != "samples":
        raise TaskError(
            f"items={items!r} takes targets, and a Task without a loss has none. Use 'samples' or "
            "a function of the batch."
        )
    return Loss(
        never_called,
        is_sum=False,
        items=count_items(items) if callable(items) else lambda batch, _: batch_size_of(batch),
        count=batch_size_of,
        kind="none",
        label="none: the step brings its own",
        divides_by=describe_divisor(items, "mean", "samples"),
    )


def _from_module(given: LossModule) -> Loss:
    own = copy.deepcopy(given)  # what it fits to one Task's data must not reach another Task
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
    """Return the loss with a frozen model, whose outputs it gets beside the targets."""
    return replace(loss, teacher=teacher)


def loss_targets(loss: Loss, micro: MicroBatch) -> Any:
    """Return the targets that the loss gets, with the outputs of its teacher if it has one."""
    if loss.teacher is None:
        return micro.targets
    return loss.with_teacher_outputs(micro.args, micro.kwargs, micro.targets)


def _count_unmasked(targets: Tensor) -> int:
    return int((targets != IGNORED).sum())
