"""Segmentation: overlap of regions, alone and beside cross-entropy; focal loss."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from surestep.base.errors import TaskError
from surestep.engine.losses import input_checks as expect
from surestep.engine.losses.base import (
    IGNORED,
    FirstBatch,
    LossDoc,
    LossModule,
    at_least_fp32,
    check_fraction,
)
from surestep.engine.losses.classification import WeightedLossModule

_LOGITS = "logits (N, C, H, W), (N, C, T) or (N, C, D, H, W)"
_MASKED = "logits (N, C, H, W) or (N, C, D, H, W)"
_EITHER = "indices (N, ...): softmax over C; or 0 to 1, same shape as the outputs: sigmoid"
_DICE = "1 - mean_c (2 sum p t + s) / (sum p + sum t + s), sums over the pixels of {}"
_DICE_SOURCE = "Drozdzal et al. 2016, https://arxiv.org/abs/1608.04117"


@dataclass(eq=False, repr=False, kw_only=True)
class Dice(LossModule):
    """One minus the overlap of predicted and true regions.

    Args:
        per: "sample": mean of the overlap of each sample. "batch": overlap over the full batch,
            which is not separable into micro-batches.
        smooth: added to numerator and denominator, so that empty regions do not divide by zero.
        ignore_index: pixels with this class index are ignored.

    Raises:
        TaskError: an option is out of its range.
    """

    name = "dice"
    doc = LossDoc(
        "segmentation: regions",
        f"{_MASKED}; with indices also (N, C, T)",
        _EITHER,
        _DICE.format("a sample"),
        "samples with a pixel that is not ignored; per='batch' is not separable",
        _DICE_SOURCE,
    )

    above_zero = {"smooth": "An empty region would be NaN."}
    per: Literal["sample", "batch"] = "sample"
    smooth: float = 1.0
    ignore_index: int = IGNORED

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per not in ("sample", "batch"):
            raise TaskError(f"per={self.per!r} is not known. Use 'sample' or 'batch'.")
        self.is_separable = self.per == "sample"

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the loss summed over samples."""
        return self.dice(at_least_fp32(outputs), targets)

    def dice(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return one minus the overlap, summed over samples, ().

        Args:
            outputs: logits (N, C, ...) of at least fp32.
            targets: indices (N, ...), or masks of 0 to 1 with the shape of the outputs.
        """
        if outputs.shape == targets.shape:
            shares, wanted = outputs.sigmoid(), targets.to(outputs.dtype)
            kept = torch.ones(len(outputs), dtype=torch.bool, device=outputs.device)
        else:
            known = (targets != self.ignore_index).unsqueeze(1)
            classes = targets.clamp(0, outputs.shape[1] - 1).long().unsqueeze(1)
            wanted = torch.zeros_like(outputs).scatter_(1, classes, 1.0) * known
            shares, kept = outputs.softmax(1) * known, known.flatten(1).any(1)
        both, sizes = (shares * wanted).flatten(2).sum(2), (shares + wanted).flatten(2).sum(2)
        if self.per == "batch":
            overlap = (2 * both.sum(0) + self.smooth) / (sizes.sum(0) + self.smooth)
            return (1 - overlap.mean()) * kept.sum()
        overlap = (2 * both + self.smooth) / (sizes + self.smooth)
        return ((1 - overlap.mean(1)) * kept).sum()

    def items(self, batch: Any, targets: Tensor) -> float:
        """Count samples with a pixel that is not ignored."""
        return int((targets != self.ignore_index).flatten(1).any(1).sum())

    def count(self, targets: Tensor) -> int:
        """Count samples, or of indices the pixels that are not ignored."""
        if targets.is_floating_point():
            return targets.shape[0]
        return int((targets != self.ignore_index).sum())

    def check(self, first: FirstBatch) -> None:
        """Check indices or masks against the outputs."""
        outputs, targets = expect.require_tensors(first)
        if outputs.shape == targets.shape:
            self.check_masks(first)
        else:
            self.check_indices(first)

    def check_masks(self, first: FirstBatch) -> None:
        """Check masks of 0 to 1.

        Args:
            first: the first batch.

        Raises:
            TaskError, DataError: they do not fit the loss or the outputs.
        """
        if self.ignore_index != IGNORED:
            raise TaskError(
                f"ignore_index={self.ignore_index} is for class indices, but the targets are "
                "masks. Leave it out, or give class indices (samples, height, width)."
            )
        if first.outputs.dim() < 4:
            raise self.shape_error(first, "Where there is one channel, use unsqueeze(1) on both.")
        expect.check_labels(first, called=self.name)

    def check_indices(self, first: FirstBatch) -> None:
        """Check indices of classes.

        Args:
            first: the first batch.

        Raises:
            TaskError, DataError: they do not fit the loss or the outputs.
        """
        outputs, targets = expect.require_tensors(first)
        hint = ""
        if outputs.dim() == targets.dim() + 1 and outputs.shape[1] == 1:
            hint = "For one region use targets.unsqueeze(1); else a channel for each class."
        elif outputs.dim() < 3:
            hint = "Without pixels use surestep.losses.multiclass()."
        elif targets.is_floating_point() and targets.dim() == outputs.dim():
            hint = f"For indices use the shape {(outputs.shape[0], *outputs.shape[2:])}."
        if hint:
            raise self.shape_error(first, hint)
        expect.check_classes(first, ignored=self.ignore_index, called=self.name)


@dataclass(eq=False, repr=False, kw_only=True)
class DiceBce(Dice):
    """Dice and binary cross-entropy of masks, both as means over samples.

    Args:
        bce: weight of the cross-entropy; Dice has weight 1.
        per: as for dice.
        smooth: as for dice.
    """

    name = "dice_bce"
    doc = LossDoc(
        "segmentation: one region, or overlapping regions",
        _MASKED,
        "0 to 1, same shape as the outputs",
        _DICE.format("a sample") + "; + b times the mean binary cross-entropy of its pixels",
        "samples",
        _DICE_SOURCE,
    )

    bce: float = 1.0
    ignore_index: int = field(default=IGNORED, init=False)

    def total(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return both terms, summed over samples."""
        outputs = at_least_fp32(outputs)
        bce = functional.binary_cross_entropy_with_logits(
            outputs, targets.to(outputs.dtype), reduction="sum"
        )
        pixels = max(1, targets.numel() // len(targets))
        return {"dice": self.dice(outputs, targets), "bce": self.bce * bce / pixels}

    def items(self, batch: Any, targets: Tensor) -> float:
        """Count samples."""
        return targets.shape[0]

    def check_indices(self, first: FirstBatch) -> None:
        """Reject indices."""
        outputs, targets = expect.require_tensors(first)
        if targets.shape == (outputs.shape[0], *outputs.shape[2:]):
            hint = (
                "For one region use targets.unsqueeze(1). For class indices use "
                "surestep.losses.dice_ce()."
            )
            raise self.shape_error(first, hint)
        expect.check_same_shape(first)


@dataclass(eq=False, repr=False, kw_only=True)
class DiceCe(Dice):
    """Dice and cross-entropy of class indices, both as means over samples.

    Args:
        ce: weight of the cross-entropy; Dice has weight 1.
        per: as for dice.
        smooth: as for dice.
        ignore_index: pixels with this class index are ignored.
    """

    name = "dice_ce"
    doc = LossDoc(
        "segmentation: regions of classes",
        _LOGITS,
        "indices (N, ...) int64",
        _DICE.format("a sample") + "; + b times the mean cross-entropy of its pixels not ignored",
        "samples with a pixel that is not ignored",
        _DICE_SOURCE,
    )

    ce: float = 1.0

    def total(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return both terms, summed over samples."""
        outputs = at_least_fp32(outputs)
        losses = functional.cross_entropy(
            outputs, targets.long(), ignore_index=self.ignore_index, reduction="none"
        )
        pixels = (targets != self.ignore_index).flatten(1).sum(1).clamp(min=1)
        ce = (losses.flatten(1).sum(1) / pixels).sum()
        return {"dice": self.dice(outputs, targets), "ce": self.ce * ce}

    def check_masks(self, first: FirstBatch) -> None:
        """Reject masks."""
        expect.check_class_targets(first, ignored=self.ignore_index, called=self.name)
        raise self.shape_error(first, "Use targets.argmax(1).")


@dataclass(eq=False, repr=False, kw_only=True)
class Focal(WeightedLossModule):
    """Cross-entropy with a small weight for easy examples.

    Args:
        gamma: the larger, the smaller the weight of easy examples; 0 is cross-entropy.
        alpha: weight of targets of 1, with 1 - alpha for targets of 0, for masks and labels; or one
            weight per class.
        ignore_index: targets with this value are ignored.

    Raises:
        TaskError: an option is out of its range.
    """

    name = "focal"
    doc = LossDoc(
        "segmentation or classification with many easy examples",
        "logits (N, ...) or (N, C, ...)",
        _EITHER,
        "-a_t (1 - p_t)^g log p_t; p_t is the predicted probability of the target",
        "targets that are not ignored, regardless of weight",
        "Lin et al. 2017, https://arxiv.org/abs/1708.02002",
    )
    over = "kept"
    weight_option = "alpha"
    gamma: float = 2.0
    alpha: float | Sequence[float] | Tensor | None = None
    ignore_index: int = IGNORED

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma < 0:
            raise TaskError(
                f"gamma={self.gamma} is below 0, so easy examples would get the largest weights. "
                "Use 2.0."
            )
        if isinstance(self.alpha, str):
            raise TaskError(
                f"alpha={self.alpha!r} is not known. Use one number for masks, such as 0.25, or "
                "one for each class."
            )

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss summed."""
        outputs, kept = at_least_fp32(outputs), targets != self.ignore_index
        alpha = self.weights_like(outputs)
        if outputs.shape == targets.shape:
            wanted = (targets * kept).to(outputs.dtype)
            losses = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
            p = outputs.sigmoid()
            missed = p * (1 - wanted) + (1 - p) * wanted
            if alpha is not None:
                losses = losses * (alpha * wanted + (1 - alpha) * (1 - wanted))
        else:
            classes = (targets * kept).long()
            own = outputs.log_softmax(1).gather(1, classes.unsqueeze(1)).squeeze(1)
            losses, missed = -own, -torch.expm1(own)
            if alpha is not None:
                losses = losses * alpha[classes]
        # The power of 0 has no finite gradient where gamma is below 1.
        return (losses * missed.clamp(min=1e-12) ** self.gamma * kept).sum()

    def check(self, first: FirstBatch) -> None:
        """Check indices or masks, and alpha, against the outputs."""
        outputs, targets = expect.require_tensors(first)
        masks = outputs.shape == targets.shape
        if masks:
            expect.check_labels(first, called=self.name, ignored=self.ignore_index)
        else:
            if targets.dim() == outputs.dim() or outputs.dim() < 2 or outputs.shape[1] == 1:
                expect.check_same_shape(first)
            expect.check_classes(first, ignored=self.ignore_index, called=self.name)
        takes = "one number" if masks else f"a number for each of {outputs.shape[1]} classes"
        wanted = torch.Size(() if masks else (outputs.shape[1],))
        if self.weights is not None and self.weights.shape != wanted:
            raise TaskError(
                f"alpha has shape {tuple(self.weights.shape)}, and focal takes {takes} with these "
                "targets."
            )
        if self.weights is not None and masks:
            check_fraction(float(self.weights), "alpha")
