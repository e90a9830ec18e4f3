"""torch's own losses, each with the denominator of its mean."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from surestep.base.errors import DataError, TaskError
from surestep.engine.batch import batch_size_of
from surestep.engine.losses import input_checks as expect
from surestep.engine.losses.base import FirstBatch, Loss, at_least_fp32
from surestep.engine.losses.classification import MultiClass
from surestep.engine.losses.ctc import CTC, check_lengths, ctc_total, unpack_ctc_targets
from surestep.engine.losses.follow import LossOptions

FUNCTIONS: dict[Any, Callable[[], nn.Module]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.nll_loss: nn.NLLLoss,
    functional.mse_loss: nn.MSELoss,
    functional.l1_loss: nn.L1Loss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.huber_loss: nn.HuberLoss,
    functional.binary_cross_entropy: nn.BCELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.poisson_nll_loss: nn.PoissonNLLLoss,
    functional.soft_margin_loss: nn.SoftMarginLoss,
    functional.multi_margin_loss: nn.MultiMarginLoss,
    functional.multilabel_margin_loss: nn.MultiLabelMarginLoss,
    functional.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
    functional.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    functional.kl_div: nn.KLDivLoss,
    functional.gaussian_nll_loss: nn.GaussianNLLLoss,
    functional.margin_ranking_loss: nn.MarginRankingLoss,
    functional.cosine_embedding_loss: nn.CosineEmbeddingLoss,
    functional.triplet_margin_loss: nn.TripletMarginLoss,
    functional.triplet_margin_with_distance_loss: nn.TripletMarginWithDistanceLoss,
    functional.ctc_loss: nn.CTCLoss,
}


class _Denominator(NamedTuple):
    """What the mean of a torch loss is over, and what it takes.

    Attributes:
        over: elements of the targets, samples, or rows: elements without the last dimension.
        stacked: the model returns several tensors, with these names.
        compares: outputs and targets have one shape, and are compared element with element.
        has_targets: it compares the outputs with targets, not with each other.
    """

    over: Literal["elements", "samples", "rows"] = "elements"
    stacked: tuple[str, ...] = ()
    compares: bool = False
    has_targets: bool = True


_COMPARED = (
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss),
    *(nn.SoftMarginLoss, nn.KLDivLoss, nn.PoissonNLLLoss),
)
_TRIPLET = _Denominator("samples", ("anchor", "positive", "negative"), has_targets=False)
KNOWN: dict[type[nn.Module], _Denominator] = {
    **dict.fromkeys(_COMPARED, _Denominator(compares=True)),
    nn.HingeEmbeddingLoss: _Denominator(),
    nn.GaussianNLLLoss: _Denominator(stacked=("mean", "variance")),
    nn.MarginRankingLoss: _Denominator(stacked=("a", "b")),
    nn.CosineEmbeddingLoss: _Denominator(stacked=("a", "b")),
    nn.TripletMarginLoss: _TRIPLET,
    nn.TripletMarginWithDistanceLoss: _TRIPLET,
    nn.MultiMarginLoss: _Denominator("samples"),
    nn.MultiLabelMarginLoss: _Denominator("samples"),
    nn.MultiLabelSoftMarginLoss: _Denominator("rows"),
}


def from_torch(module: nn.Module) -> Loss | None:
    """Return the Loss of one of torch's modules; None if it is not known.

    Raises:
        TaskError: `reduction="none"`.
    """
    kind = type(module)
    if kind not in KNOWN and kind not in (nn.CrossEntropyLoss, nn.NLLLoss, nn.CTCLoss):
        return None
    name, reduction = kind.__name__, str(module.reduction)
    if reduction == "none":
        raise TaskError(
            f"{name}(reduction='none') returns a loss for each element, and a step needs one "
            f"number. Use {name}() and let surestep divide."
        )
    summing: Any = copy.copy(module)
    summing._buffers = dict(module._buffers)  # moved to the device; the user's are not
    summing.reduction = "sum"
    if kind is nn.CTCLoss:
        known = _ctc(summing, reduction)
    elif kind in KNOWN and not KNOWN[kind].compares:
        summing.reduction = "none"
        known = _combined(summing, reduction)
    elif kind in KNOWN:
        known = replace(_compared(summing, reduction), in_fp32=_in_fp32(summing))
    else:
        known = replace(_classes(summing, reduction, module), in_fp32=_in_fp32(summing))
    if known.options is None:
        known = replace(known, options=LossOptions(module, summing, fixed=("reduction",)))
    is_changed = "forward" in vars(module) or module._forward_hooks
    if is_changed and known.divides and (kind not in KNOWN or KNOWN[kind].compares):
        return _changed_mean(module, known)
    return known


def _changed_mean(module: nn.Module, known: Loss) -> Loss:
    """Return a loss of the mean of `module`, which a hook sees, or the user has changed."""
    own = copy.copy(module)
    own._buffers = dict(module._buffers)
    on_change = None if known.options is None else known.options.on_change
    options = LossOptions(module, own, on_change=on_change)
    return replace(known, value=own, is_sum=False, in_fp32=None, module=own, options=options)


def _in_fp32(summing: Any) -> Callable[[Any, Any], Tensor]:
    """Return `summing` in fp32, with items in their own precision as in torch's mean."""

    def in_fp32(outputs: Any, targets: Any) -> Tensor:
        summing.reduction = "none"
        try:
            losses: Tensor = summing(outputs, targets)
        finally:
            summing.reduction = "sum"
        return losses.sum(dtype=torch.float32)

    return in_fp32


def _classes(summing: Any, reduction: str, given: Any) -> Loss:
    ignored = int(summing.ignore_index)
    like = MultiClass(ignore_index=ignored)  # which counts the same way
    like.host_weights = summing.weight

    def on_change() -> None:
        like.ignore_index, like.host_weights = int(given.ignore_index), given.weight

    def check(first: FirstBatch) -> None:
        name = type(summing).__name__
        expect.check_class_targets(first, ignored=ignored, called=name)
        if first.targets.dtype is torch.uint8 and first.targets.dim() > 1:
            raise DataError(f"{name} takes no images of torch.uint8: use .long().")
        if isinstance(summing, nn.CrossEntropyLoss):
            expect.check_logits(first, called=name, applies="softmax")
        else:
            expect.check_log_probabilities(first, name, "nn.CrossEntropyLoss()")

    return Loss(
        summing,
        is_sum=True,
        items=like.items,
        count=like.count,
        kind="classes",
        divides=reduction != "sum",
        label=type(summing).__name__,
        divides_by="the weights of targets that are not ignored"
        if summing.weight is not None
        else "targets that are not ignored",
        check=check,
        class_dim=like.class_dim,
        module=summing,
        options=LossOptions(given, summing, ("reduction",), on_change),
    )


def _compared(summing: Any, reduction: str) -> Loss:
    """Return a loss of outputs and targets of one shape."""
    over = "samples" if reduction == "batchmean" else KNOWN[type(summing)].over
    return Loss(
        summing,
        is_sum=True,
        items=partial(_count, over),
        count=batch_size_of,
        kind="known",
        divides=reduction != "sum",
        label=type(summing).__name__,
        divides_by=over,
        check=_check_compared(summing),
        module=summing,
    )


def _count(over: str, batch: Any, targets: Any) -> int:
    if over == "samples":
        return batch_size_of(batch if targets is None else targets)
    elements = int(targets.numel())
    return elements // targets.shape[-1] if over == "rows" else elements


def _combined(module: Any, reduction: str) -> Loss:
    """Return a loss whose shape is not that of the targets: they broadcast, or are not compared.

    Only `module`, which returns a loss for each element, knows what torch's mean is over. So a
    micro-batch has torch's mean, times the items that its targets hold.
    """
    name, denominator = type(module).__name__, KNOWN[type(module)]
    stacked, has_targets = denominator.stacked, denominator.has_targets
    divides = reduction != "sum"
    items = partial(_count, denominator.over)

    def compute(outputs: Any, targets: Any) -> Tensor:
        losses: Tensor
        if not stacked:
            losses = module(outputs, targets)
            return losses
        parts = expect.as_tuple(outputs, stacked, name)
        if isinstance(module, nn.GaussianNLLLoss):
            losses = module(parts[0], targets, parts[1])
        else:
            losses = module(*parts, targets) if has_targets else module(*parts)
        return losses

    def value(outputs: Any, targets: Any, dtype: torch.dtype | None = None) -> Tensor:
        losses = compute(outputs, targets)
        if divides and not has_targets:
            return losses.mean(dtype=dtype)
        elements = items(None, targets) if divides else losses.numel()
        if elements == losses.numel():
            return losses.sum(dtype=dtype)
        return losses.mean(dtype=dtype) * elements

    return Loss(
        value,
        is_sum=has_targets or not divides,
        items=items,
        count=batch_size_of,
        kind="known",
        divides=divides,
        label=name,
        divides_by="elements" if denominator.over == "elements" else "samples",
        module=module,
        in_fp32=partial(value, dtype=torch.float32),
    )


def _check_compared(summing: Any) -> Callable[[FirstBatch], None]:
    name = type(summing).__name__

    def check(first: FirstBatch) -> None:
        outputs, targets = expect.check_same_shape(first)
        expect.check_floating(targets, name)
        if isinstance(summing, (nn.BCELoss, nn.BCEWithLogitsLoss)):
            expect.check_label_targets(targets, called=name)
        if isinstance(summing, nn.BCEWithLogitsLoss):
            expect.check_logits(first, called=name, applies="sigmoid")
        if isinstance(summing, nn.BCELoss):
            low, high = float(outputs.min()), float(outputs.max())
            if low < 0 or high > 1:
                raise TaskError(
                    f"The model's outputs run from {low:.4g} to {high:.4g}, and BCELoss takes "
                    "probabilities. Use nn.BCEWithLogitsLoss(), which takes logits."
                )
        if isinstance(summing, nn.SoftMarginLoss):
            expect.check_signs(targets, name)
        if isinstance(summing, nn.KLDivLoss):  # the classes may be in any dimension
            dims = tuple(range(outputs.dim()))
            instead = "surestep.losses.multiclass()"
            expect.check_log_probabilities(first, name, instead, dims=dims)

    return check


def _ctc(summing: nn.CTCLoss, reduction: str) -> Loss:
    """CTC's mean is over samples, each first divided by the length of its labels."""
    divides = reduction != "sum"
    summing.reduction = "none"
    like = CTC()  # which counts the same way

    def value(outputs: Tensor, targets: Any) -> Tensor:
        labels, frames, lengths = unpack_ctc_targets(targets)
        losses: Tensor = summing(at_least_fp32(outputs), labels, frames, lengths)
        return ctc_total(losses, lengths) if divides else losses.sum()

    def check(first: FirstBatch) -> None:
        labels, frames, lengths = unpack_ctc_targets(first.targets)
        if isinstance(first.outputs, Tensor) and first.outputs.dim() == 3 and labels.dim() == 2:
            called = "" if summing.zero_infinity else "nn.CTCLoss"
            check_lengths(labels, frames, lengths, len(first.outputs), called=called)

    return Loss(
        value,
        is_sum=True,
        items=like.items,
        count=like.count,
        kind="known",
        divides=divides,
        label="CTCLoss",
        divides_by="samples, each divided by the length of its labels before",
        check=check,
        module=summing,
    )
