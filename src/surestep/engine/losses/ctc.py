"""CTC: a label sequence from a longer sequence of frames, without known alignment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from surestep.base.errors import DataError, TaskError
from surestep.engine.losses.base import FirstBatch, LossDoc, LossModule, at_least_fp32
from surestep.engine.losses.input_checks import check_logits

_PARTS = ("labels", "input_lengths", "label_lengths")


def unpack_ctc_targets(targets: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return (labels, input_lengths, label_lengths), of a tuple or a dict."""
    if isinstance(targets, Mapping) and set(_PARTS) <= set(targets):
        targets = tuple(targets[name] for name in _PARTS)
    if isinstance(targets, (tuple, list)) and len(targets) == len(_PARTS):
        labels, frames, lengths = targets
        return labels, torch.as_tensor(frames), torch.as_tensor(lengths)
    raise TaskError(
        "CTC takes the targets (labels, input_lengths, label_lengths), as a tuple or a dict. Use "
        "Task(inputs=lambda batch: (batch[0], tuple(batch[1:])))."
    )


def ctc_total(losses: Tensor, lengths: Tensor) -> Tensor:
    """Divide the loss of each sample by the length of its labels, and add up.

    This is what torch's mean is over: https://docs.pytorch.org/docs/stable/generated/
    torch.nn.CTCLoss.html
    """
    return (losses / lengths.to(losses.device, losses.dtype).clamp(min=1)).sum()


@dataclass(eq=False, repr=False, kw_only=True)
class CTC(LossModule):
    """Label sequences from frames, summed over all alignments.

    Args:
        blank: index of the blank class.
        zero_infinity: use 0 for samples whose labels do not fit into their frames.
    """

    name = "ctc"
    doc = LossDoc(
        "label sequences from frames (speech, handwriting)",
        "logits (N, T, C)",
        "(labels (N, S), input_lengths (N,), label_lengths (N,)), as a tuple or a dict",
        "-log sum over alignments of prod_t softmax(x_t), divided by the length of the labels",
        "samples, after each is divided by the length of its labels",
        "Graves et al. 2006, https://doi.org/10.1145/1143844.1143891",
    )

    blank: int = 0
    zero_infinity: bool = False

    def total(self, outputs: Tensor, targets: Any) -> Tensor:
        """Return the loss for each label, summed over samples."""
        labels, frames, lengths = unpack_ctc_targets(targets)
        losses = functional.ctc_loss(
            at_least_fp32(outputs).log_softmax(2).transpose(0, 1),
            labels,
            frames,
            lengths,
            blank=self.blank,
            reduction="none",
            zero_infinity=self.zero_infinity,
        )
        return ctc_total(losses, lengths)

    def items(self, batch: Any, targets: Any) -> float:
        """Count samples."""
        return len(unpack_ctc_targets(targets)[2])

    def count(self, targets: Any) -> int:
        """Count samples."""
        return len(unpack_ctc_targets(targets)[2])

    def check(self, first: FirstBatch) -> None:
        """Check logits, labels and lengths."""
        outputs, (labels, frames, lengths) = first.outputs, unpack_ctc_targets(first.targets)
        if not isinstance(outputs, Tensor) or outputs.dim() != 3 or len(outputs) != len(lengths):
            hint = "Use outputs.transpose(0, 1) where frames are first."
            raise self.shape_error(first, hint)
        check_logits(first, called=self.name, applies="softmax", dim=2)
        _check_labels(labels, lengths, outputs.shape[2], self.blank)
        called = "" if self.zero_infinity else "surestep.losses.ctc"
        check_lengths(labels, frames, lengths, outputs.shape[1], called=called)


def _check_labels(labels: Tensor, lengths: Tensor, classes: int, blank: int) -> None:
    if not 0 <= blank < classes:
        raise TaskError(
            f"blank={blank} is not a class: the model has {classes} outputs. Use 0 to "
            f"{classes - 1}."
        )
    if labels.dim() != 2 or labels.is_floating_point():
        raise DataError(
            f"The labels are {labels.dtype} of shape {tuple(labels.shape)}, and ctc takes integers "
            "(samples, positions): use .long(), and torch.nn.utils.rnn.pad_sequence(labels, True), "
            "which fills each row up to the longest."
        )
    if int(lengths.max()) > labels.shape[1]:
        raise DataError(
            f"The label_lengths have {int(lengths.max())} labels, and a row of labels has "
            f"{labels.shape[1]}. Give the number of labels in each row."
        )
    labels = labels[torch.arange(labels.shape[1], device=labels.device) < lengths[:, None]]
    if not labels.numel():
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes or bool((labels == blank).any()):
        raise DataError(
            f"The labels run from {low} to {high}, and the model has {classes} outputs: labels are "
            f"0 to {classes - 1} without {blank}, which is the blank. Count labels from "
            f"{blank + 1}, or use surestep.losses.ctc(blank={classes - 1})."
        )


def check_lengths(
    labels: Tensor, frames: Tensor, lengths: Tensor, there: int, *, called: str
) -> None:
    """Check that all frames exist, and that the labels fit into them if a loss is `called`."""
    if int(frames.max()) > there:
        raise DataError(
            f"An input has {int(frames.max())} frames by its length, and the model returns "
            f"{there}. Give the lengths of what the model returns."
        )
    labels, frames, lengths = labels.cpu(), frames.cpu(), lengths.cpu()
    is_repeated = labels[:, 1:] == labels[:, :-1]
    inside = torch.arange(1, labels.shape[1]) < lengths[:, None]
    short = int((frames < lengths + (is_repeated & inside).sum(1)).sum())
    if called and short:
        raise DataError(
            f"{short} samples have fewer frames than labels, with a blank between two that are "
            "equal, so their loss is infinite. Leave them out, or use "
            f"{called}(zero_infinity=True)."
        )
