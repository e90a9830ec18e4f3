"""Focal loss: cross-entropy that looks at what is hard."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from surestep.base.errors import TaskError
from surestep.engine.losses import input_checks as expect
from surestep.engine.losses import target_checks as expect_figures
from surestep.engine.losses.base import IGNORED, FirstBatch, LossDoc, LossModule, at_least_fp32
from surestep.engine.losses.class_weights import parse_class_weights
from surestep.engine.losses.classification import check_fraction
from surestep.engine.losses.segmentation import EITHER


class Focal(LossModule):
    """Cross-entropy with a small weight for easy examples.

    Args:
        gamma: the larger, the smaller the weight of easy examples; 0 is cross-entropy.
        alpha: weight of targets of 1, with 1 - alpha for targets of 0, for masks and labels; or one
            weight per class.
        ignore_index: targets with this value are ignored.
    """

    name = "focal"
    doc = LossDoc(
        "segmentation or classification with many easy examples",
        "logits (N, ...) or (N, C, ...)",
        EITHER,
        "-a_t (1 - p_t)^g log p_t; p_t is the predicted probability of the target",
        "targets that are not ignored, regardless of weight",
        "Lin et al. 2017, https://arxiv.org/abs/1708.02002",
    )

    alpha: Tensor | None

    def __init__(
        self,
        *,
        gamma: float = 2.0,
        alpha: float | Sequence[float] | Tensor | None = None,
        ignore_index: int = IGNORED,
    ) -> None:
        super().__init__(gamma=gamma, alpha=alpha, ignore_index=ignore_index)
        if gamma < 0:
            raise TaskError(f"gamma={gamma} is below 0, and would weigh the easy most. Use 2.0.")
        if isinstance(alpha, str):
            raise TaskError(
                f"alpha={alpha!r} is not known. Use one number for masks, such as 0.25, or one for "
                "each class."
            )
        self.gamma, self.ignore_index = gamma, ignore_index
        self.register_buffer("alpha", parse_class_weights(alpha, "alpha"), persistent=False)  # type: ignore[arg-type]

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss summed."""
        outputs, kept = at_least_fp32(outputs), targets != self.ignore_index
        alpha = None if self.alpha is None else self.alpha.to(outputs.dtype)
        if outputs.shape == targets.shape:
            wanted = (targets * kept).to(outputs.dtype)
            each = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
            p = outputs.sigmoid()
            missed = p * (1 - wanted) + (1 - p) * wanted
            if alpha is not None:
                each = each * (alpha * wanted + (1 - alpha) * (1 - wanted))
        else:
            classes = (targets * kept).long()
            own = outputs.log_softmax(1).gather(1, classes.unsqueeze(1)).squeeze(1)
            each, missed = -own, -torch.expm1(own)
            if alpha is not None:
                each = each * alpha[classes]
        # The power of 0 has no finite gradient where gamma is below 1.
        return (each * missed.clamp(min=1e-12) ** self.gamma * kept).sum()

    def items(self, batch: Any, targets: Tensor) -> float:
        """Count targets that are not ignored."""
        return self.count(targets)

    def count(self, targets: Tensor) -> int:
        """Count targets that are not ignored."""
        return int((targets != self.ignore_index).sum())

    def check(self, first: FirstBatch) -> None:
        """Check indices or masks, and alpha, against the outputs."""
        outputs, targets = expect.require_tensors(first)
        masks = outputs.shape == targets.shape
        if masks:
            expect_figures.check_label_targets(targets, called=self.name, ignored=self.ignore_index)
            expect.check_label_logits(first, called=self.name)
        else:
            if targets.dim() == outputs.dim() or outputs.dim() < 2 or outputs.shape[1] == 1:
                expect_figures.check_same_shape(first)
            expect.check_class_targets(first, ignored=self.ignore_index, called=self.name)
            expect.check_class_logits(first, called=self.name)
            expect.warn_of_ignored_class(targets, outputs.shape[1], self.ignore_index)
        takes = "one number" if masks else f"a number for each of {outputs.shape[1]} classes"
        wanted = torch.Size(() if masks else (outputs.shape[1],))
        if self.alpha is not None and self.alpha.shape != wanted:
            raise TaskError(
                f"alpha has shape {tuple(self.alpha.shape)}, and focal takes {takes} with these "
                "targets."
            )
        if self.alpha is not None and masks:
            check_fraction(float(self.alpha), "alpha")
