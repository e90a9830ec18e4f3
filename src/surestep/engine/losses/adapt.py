"""Turn what the user passes as loss into a Loss: a sum with its true denominator.

Most losses return a mean. Means over micro-batches can only be combined if it is known what they
are over: targets that are not ignored, the sum of their class weights, elements, or samples.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.batch import batch_size_of
from surestep.engine.losses.base import IGNORED as IGNORED
from surestep.engine.losses.base import Loss as Loss
from surestep.engine.losses.base import LossFunction as LossFunction
from surestep.engine.losses.base import LossModule, WeightedLoss, never_called
from surestep.engine.losses.classification import MultiClass
from surestep.engine.losses.follow import LossOptions
from surestep.engine.losses.multi import combine_losses, error_prefix
from surestep.engine.losses.registry import BUILT_IN, get_loss
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
    given = get_loss(loss) if isinstance(loss, str) else loss
    given = FUNCTIONS.get(given, lambda: given)()
    known = None
    if isinstance(given, LossModule):
        known = _from_module(given)
    elif isinstance(given, nn.Module):
        known = from_torch(given)
    if known is not None:
        usual = {"items": (items, "samples"), "reduction": (reduction, "mean")}
        for option, (value, default) in usual.items():
            if value != default:
                raise TaskError(
                    f"{option}={value!r} is set, but {known.label} brings its own. Leave {option} "
                    "out, or wrap the loss in a function."
                )
        return known
    count = _count_unmasked if items == "tokens" else batch_size_of
    return declared_loss(
        given,
        items,
        reduction,
        known={
            "samples": lambda _, targets: batch_size_of(targets),
            "tokens": lambda _, targets: _count_unmasked(targets),
        },
        divides_by=f"{items}, as set",
        count=count,
        counts_samples=items == "samples",
        kind="other",
        label=getattr(given, "__name__", type(given).__name__),
        module=given if isinstance(given, nn.Module) else None,
    )


def declared_loss(
    value: LossFunction,
    items: Items,
    reduction: str,
    *,
    known: Mapping[str, Callable[[Any, Any], float]],
    divides_by: str,
    **attributes: Any,
) -> Loss:
    """Return a loss whose denominator the Task declares.

    Args:
        value: a mean or a sum.
        items: how items are counted: a name, or a function of the batch.
        reduction: "mean" over the items, or "sum", which nothing divides.
        known: the functions of batch and targets that can be named.
        divides_by: what a mean is over, unless a function counts it.
        **attributes: of the Loss.

    Raises:
        TaskError: an unknown value of `items` or `reduction`.
    """
    if reduction not in ("mean", "sum"):
        raise TaskError(f"reduction={reduction!r} is not known. Use 'mean' or 'sum'.")
    if not callable(items) and items not in tuple(known):
        names = ", ".join(map(repr, known))
        raise TaskError(f"items={items!r} is not known. Use {names} or a function of the batch.")
    count = known[items] if isinstance(items, str) else lambda batch, _: float(items(batch))
    if callable(items):
        divides_by = "what items() counts"
    return Loss(
        value,
        is_sum=reduction == "sum",
        divides=reduction != "sum",
        items=count,
        divides_by="nothing" if reduction == "sum" else divides_by,
        **attributes,
    )


def as_losses(
    losses: Mapping[str, LossFunction | str],
    items: Mapping[str, Items],
    weights: Mapping[str, float],
    reductions: Mapping[str, str],
) -> Loss:
    """Turn several losses by name into their weighted sum; a weight that is not set is 1."""
    parts = []
    for name, given in losses.items():
        with error_prefix(name):
            loss = as_loss(given, items.get(name, "samples"), reductions.get(name, "mean"))
        parts.append(WeightedLoss(name, loss, float(weights.get(name, 1.0))))
    return combine_losses(parts)


def items_only_loss(items: Items) -> Loss:
    """Return what counts the items of a Task whose step computes its own losses."""
    return declared_loss(
        never_called,
        items,
        "mean",
        known={"samples": lambda batch, _: batch_size_of(batch)},
        divides_by="samples",
        count=batch_size_of,
        counts_samples=items == "samples",
        kind="none",
        label="none: the step brings its own",
    )


def _from_module(given: LossModule) -> Loss:
    own = copy.deepcopy(given)  # what it fits to one Task's data must not reach another Task
    is_per_sample = type(own).count is LossModule.count and own.over != "kept"
    # The targets of surestep's own losses have a row for each sample.
    is_of_user = type(own) not in BUILT_IN.values()
    return Loss(
        own.total,
        is_sum=True,
        items=own.items,
        count=batch_size_of if is_per_sample else own.count,
        counts_samples=is_of_user
        and is_per_sample
        and own.over == "samples"
        and type(own).items is LossModule.items,
        kind="classes" if isinstance(own, MultiClass) else "known",
        label=repr(own),
        divides_by=own.doc.divides_by,
        check=own.check,
        class_dim=own.class_dim if isinstance(own, MultiClass) else None,
        module=own,
        is_separable=own.is_separable,
        options=LossOptions(given, own),
    )


def _count_unmasked(targets: Tensor) -> int:
    return int((targets != IGNORED).sum())
