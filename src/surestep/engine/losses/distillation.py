"""Distillation: a student learns from labels and from a teacher's logits."""

from dataclasses import dataclass
from typing import Any

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


@dataclass(eq=False, repr=False, kw_only=True)
class Distillation(LossModule):
    """Distillation: the teacher's softened class probabilities, and the labels.

    Args:
        temperature: divisor of both models' logits in the soft term.
        alpha: weight of the soft term; the labels have 1 - alpha.
        label_smoothing: share of each label that is spread over all classes.
        ignore_index: labels with this value are ignored, in both terms.
    """

    name = "distillation"
    doc = LossDoc(
        "train a small model from a large one",
        "logits (N, C, ...)",
        "(indices (N, ...), teacher's logits (N, C, ...)); or indices, with Task(teacher=net)",
        "a T^2 KL(softmax(y / T) || softmax(x / T)) + (1 - a) cross-entropy(x, t); "
        "y is the teacher's",
        "labels that are not ignored, both terms",
        "Hinton et al. 2015, https://arxiv.org/abs/1503.02531",
    )
    over = "kept"
    above_zero = {"temperature": "Use 1 to 10."}
    temperature: float = 2.0
    alpha: float = 0.5
    label_smoothing: float = 0.0
    ignore_index: int = IGNORED

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self.alpha, "alpha")

    def total(self, outputs: Tensor, targets: Any) -> dict[str, Tensor]:
        """Return both terms, summed."""
        labels, teacher = targets
        outputs, teacher = at_least_fp32(outputs), at_least_fp32(teacher)
        student = (outputs / self.temperature).log_softmax(1)
        taught = (teacher / self.temperature).log_softmax(1)
        losses = functional.kl_div(student, taught, reduction="none", log_target=True).sum(1)
        soft = losses.masked_fill(labels == self.ignore_index, 0).sum()
        hard = functional.cross_entropy(
            outputs,
            labels,
            ignore_index=self.ignore_index,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        return {
            "soft": self.alpha * self.temperature**2 * soft,
            "hard": (1 - self.alpha) * hard,
        }

    def labels(self, targets: Any) -> Tensor:
        """Return the labels, which are alone if a Task's teacher will add the logits."""
        labels = targets[0] if isinstance(targets, (tuple, list)) else targets
        if not isinstance(labels, Tensor):
            raise TaskError(
                f"distillation takes labels, and got a {type(labels).__name__}. If samples have "
                "none, give zeros (torch.long) and use surestep.losses.distillation(alpha=1.0)."
            )
        return labels

    def check(self, first: FirstBatch) -> None:
        """Check that the teacher's logits are there and have the student's shape."""
        if not isinstance(first.targets, (tuple, list)) or len(first.targets) != 2:
            hint = "Use Task(teacher=net), or let the targets be (labels, teacher_logits)."
            raise self.shape_error(first, hint)
        labels, teacher = first.targets
        shape = getattr(first.outputs, "shape", None)
        if shape is None or shape != getattr(teacher, "shape", None):
            raise self.shape_error(first, "Both models must return logits of the same shape.")
        if labels.is_floating_point():
            raise self.shape_error(first, "Labels are class indices: use labels.long().")
        student = first._replace(targets=labels)
        expect.check_classes(student, ignored=self.ignore_index, called=self.name)
        if expect.is_distribution(teacher.detach(), 1):
            raise TaskError(
                "The teacher's outputs are probabilities, and distillation takes its logits. "
                "Leave its softmax out."
            )
