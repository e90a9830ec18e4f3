"""torch's own losses, each with the denominator that its mean has."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from surestep.base.errors import DataError, TaskError
from surestep.engine.batch import batch_size_of
from surestep.engine.losses import input_checks as expect
from surestep.engine.losses import target_checks as expect_figures
from surestep.engine.losses.base import FirstBatch, Loss, at_least_fp32
from surestep.engine.losses.classification import count_of_classes, weighted_count
from surestep.engine.losses.ctc import check_lengths, ctc_total, unpack_ctc_targets

Over = Literal["elements", "samples", "rows"]

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
}


@dataclass(frozen=True)
class _TorchLoss:
    """A loss of torch.

    Attributes:
        over: what its mean is over: elements of the targets, samples, or elements but the last
            dimension.
        parts: how the model's outputs and the targets become its arguments; None for as they are.
        figures: outputs and targets are compared element with element.
    """

    over: Over = "elements"
    parts: Callable[[Any, Any], tuple[Any, ...]] | None = None
    figures: bool = False


def _pair_and_targets(called: str, *names: str) -> Callable[[Any, Any], tuple[Any, ...]]:
    return lambda outputs, targets: (*expect.as_tuple(outputs, names, called), targets)


def _triplet(outputs: Any, _: Any) -> tuple[Any, ...]:
    return expect.as_tuple(outputs, ("anchor", "positive", "negative"), "TripletMarginLoss")


def _mean_and_variance(outputs: Any, targets: Tensor) -> tuple[Any, ...]:
    mean, variance = expect.as_tuple(outputs, ("mean", "variance"), "GaussianNLLLoss")
    return mean, targets, variance


KNOWN: dict[type[nn.Module], _TorchLoss] = {
    nn.MSELoss: _TorchLoss(figures=True),
    nn.L1Loss: _TorchLoss(figures=True),
    nn.SmoothL1Loss: _TorchLoss(figures=True),
    nn.HuberLoss: _TorchLoss(figures=True),
    nn.BCELoss: _TorchLoss(figures=True),
    nn.BCEWithLogitsLoss: _TorchLoss(figures=True),
    nn.SoftMarginLoss: _TorchLoss(figures=True),
    nn.KLDivLoss: _TorchLoss(figures=True),
    nn.PoissonNLLLoss: _TorchLoss(figures=True),
    nn.HingeEmbeddingLoss: _TorchLoss(),
    nn.GaussianNLLLoss: _TorchLoss(parts=_mean_and_variance),
    nn.MarginRankingLoss: _TorchLoss(parts=_pair_and_targets("MarginRankingLoss", "a", "b")),
    nn.CosineEmbeddingLoss: _TorchLoss(parts=_pair_and_targets("CosineEmbeddingLoss", "a", "b")),
    nn.TripletMarginLoss: _TorchLoss("samples", _triplet),
    nn.TripletMarginWithDistanceLoss: _TorchLoss("samples", _triplet),
    nn.MultiMarginLoss: _TorchLoss("samples"),
    nn.MultiLabelMarginLoss: _TorchLoss("samples"),
    nn.MultiLabelSoftMarginLoss: _TorchLoss("rows"),
}


def from_torch(module: nn.Module) -> Loss | None:
    """Return the Loss of one of torch's modules; None where it is not known.

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
    summing._buffers = dict(module._buffers)  # moved to the device, the user's own are not
    summing.reduction = "sum"
    if kind is nn.CTCLoss:
        return _ctc(summing, reduction)
    make = _classes if kind in (nn.CrossEntropyLoss, nn.NLLLoss) else _figures
    known = make(summing, reduction)
    return replace(known, in_fp32=_in_fp32(summing, known.value))


def _in_fp32(summing: Any, value: Callable[..., Any]) -> Callable[[Any, Any], Tensor]:
    """Return `value` summed in fp32, with items in their own precision as torch's mean has them."""

    def in_fp32(outputs: Any, targets: Any) -> Tensor:
        summing.reduction = "none"
        try:
            each: Tensor = value(outputs, targets)
        finally:
            summing.reduction = "sum"
        return each.sum(dtype=torch.float32)

    return in_fp32


def _classes(summing: Any, reduction: str) -> Loss:
    weight = summing.weight if isinstance(summing.weight, Tensor) else None
    ignored = int(summing.ignore_index)

    def count(targets: Tensor) -> int:
        if targets.is_floating_point():
            return targets.shape[0]
        return int((targets != ignored).sum())

    def check(first: FirstBatch) -> None:
        expect.check_class_targets(first, ignored=ignored)
        if first.targets.dtype is torch.uint8 and first.targets.dim() > 1:
            name = type(summing).__name__
            raise DataError(f"{name} takes no images of torch.uint8: use .long().")
        if isinstance(summing, nn.CrossEntropyLoss):
            expect.check_class_logits(first, called="CrossEntropyLoss")
        else:
            expect_figures.log_probabilities(first, "NLLLoss", "nn.CrossEntropyLoss()")

    return Loss(
        summing,
        is_sum=True,
        items=lambda _, targets: weighted_count(targets, weight, ignored),
        count=count,
        kind="classes",
        divides=reduction != "sum",
        label=type(summing).__name__,
        divides_by="the weights of targets that are not ignored"
        if weight is not None
        else "targets that are not ignored",
        check=check,
        classes=count_of_classes,
        module=summing,
    )


def _figures(summing: Any, reduction: str) -> Loss:
    known = KNOWN[type(summing)]
    over: Over = "samples" if reduction == "batchmean" else known.over
    parts = known.parts

    def items(batch: Any, targets: Any) -> float:
        if over == "samples":
            return batch_size_of(batch if targets is None else targets)
        elements = int(targets.numel())
        return elements // targets.shape[-1] if over == "rows" else elements

    return Loss(
        summing if parts is None else lambda o, t: summing(*parts(o, t)),
        is_sum=True,
        items=items,
        count=batch_size_of,
        kind="elementwise" if known.figures else "torch",
        divides=reduction != "sum",
        label=type(summing).__name__,
        divides_by=over if over != "rows" else "samples",
        check=_check_figures(summing) if known.figures else None,
        module=summing,
    )


def _check_figures(summing: Any) -> Callable[[FirstBatch], None]:
    name = type(summing).__name__

    def check(first: FirstBatch) -> None:
        outputs, targets = expect_figures.check_same_shape(first)
        expect_figures.check_floating(targets, name)
        if isinstance(summing, (nn.BCELoss, nn.BCEWithLogitsLoss)):
            expect_figures.check_label_targets(targets, called=name)
        if isinstance(summing, nn.BCEWithLogitsLoss):
            expect.check_label_logits(first, called=name)
        if isinstance(summing, nn.BCELoss):
            expect_figures.probabilities(outputs, name, "nn.BCEWithLogitsLoss()")
        if isinstance(summing, nn.SoftMarginLoss):
            expect_figures.check_signs(targets, name)
        if isinstance(summing, nn.KLDivLoss):
            # Which dimension the classes are in, it does not say.
            dims = tuple(range(outputs.dim()))
            expect_figures.log_probabilities(first, name, "surestep.losses.multiclass()", dims=dims)

    return check


def _ctc(summing: nn.CTCLoss, reduction: str) -> Loss:
    """CTC's mean is over samples, each divided by the length of its labels before."""
    divides = reduction != "sum"
    summing.reduction = "none"

    def value(outputs: Tensor, targets: Any) -> Tensor:
        labels, frames, lengths = unpack_ctc_targets(targets)
        each: Tensor = summing(at_least_fp32(outputs), labels, frames, lengths)
        return ctc_total(each, lengths) if divides else each.sum()

    def samples(targets: Any) -> int:
        return len(unpack_ctc_targets(targets)[2])

    def check(first: FirstBatch) -> None:
        labels, frames, lengths = unpack_ctc_targets(first.targets)
        if isinstance(first.outputs, Tensor) and first.outputs.dim() == 3 and labels.dim() == 2:
            called = "" if summing.zero_infinity else "nn.CTCLoss"
            check_lengths(labels, frames, lengths, len(first.outputs), called=called)

    return Loss(
        value,
        is_sum=True,
        items=lambda _, targets: samples(targets),
        count=samples,
        kind="torch",
        divides=divides,
        label="CTCLoss",
        divides_by="samples, each divided by the length of its labels before",
        check=check,
        module=summing,
    )
