"""Checks of the first batch by losses: shapes, types and ranges, and what to use instead.

They raise TaskError if the model or the Task is to be changed, and DataError if the data is.
"""

from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import DataError, TaskError
from surestep.base.warn import warn
from surestep.engine.batch import explain_targets
from surestep.engine.losses.base import HALF, FirstBatch, Squash, describe_shape

INDEX_TYPES = (torch.int64, torch.uint8)
SILENCE = "If it is meant, give the loss as a function of (outputs, targets)."
MANY = 32  # outputs that all lie between 0 and 1 are hardly so by chance


def require_tensors(first: FirstBatch) -> tuple[Tensor, Tensor]:
    """Return outputs and targets, each one tensor."""
    if not isinstance(first.outputs, Tensor):
        raise TaskError(
            f"The model returns a {type(first.outputs).__name__}, and the loss takes a tensor. "
            "Return the tensor, or give a function of (outputs, targets) as loss."
        )
    if not isinstance(first.targets, Tensor):
        raise DataError(explain_targets(first.targets, "the loss"))
    return first.outputs, first.targets


def as_tuple(value: Any, wanted: tuple[str, ...], called: str) -> tuple[Tensor, ...]:
    """Return what a loss takes as several tensors: a tuple, or one tensor stacked along dim 1."""
    if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[1] == len(wanted):
        return value.unbind(1)
    if isinstance(value, (tuple, list)) and len(value) == len(wanted):
        return tuple(value)
    raise TaskError(
        f"{called} compares {', '.join(wanted)}, and the model returns {describe_shape(value)}. "
        f"Return a tuple ({', '.join(wanted)}), or one tensor (samples, {len(wanted)}, ...)."
    )


def check_logits(first: FirstBatch, *, called: str, applies: Squash, dim: int = 1) -> None:
    """Reject probabilities if the loss applies a softmax along `dim`, or a sigmoid, itself."""
    outputs, squashed = first.outputs.detach(), first.squashed
    if squashed is None and applies == "softmax" and is_distribution(outputs, dim):
        squashed = "softmax"
    if squashed is not None:
        several = "; or use surestep.losses.multilabel() if several classes can hold at once"
        raise TaskError(
            f"The model's outputs are probabilities, as after a {squashed}, and {called} takes "
            f"logits: it applies the {applies} itself. Leave the {squashed} out of the model"
            f"{several if (squashed, applies) == ('sigmoid', 'softmax') else ''}. {SILENCE}"
        )
    is_large = applies == "sigmoid" and outputs.numel() >= MANY
    if is_large and float(outputs.min()) > 0 and float(outputs.max()) < 1:
        warn(
            f"All outputs of the first batch lie between 0 and 1, as after a sigmoid, and {called} "
            "takes logits: it applies the sigmoid itself. Leave a sigmoid out of the model.",
        )


def is_distribution(values: Tensor, dim: int) -> bool:
    """Return whether all values are probabilities of classes along `dim`."""
    if values.dim() <= dim or values.shape[dim] < 2 or values.numel() == 0 or values.min() < 0:
        return False
    slack = 2e-2 if values.dtype in HALF else 1e-3
    return bool(((values.float().sum(dim) - 1).abs() < slack).all())


def check_classes(first: FirstBatch, *, ignored: int, called: str) -> None:
    """Check class indices or probabilities against logits (samples, classes, ...)."""
    check_class_targets(first, ignored=ignored, called=called)
    check_logits(first, called=called, applies="softmax")
    classes, targets = first.outputs.shape[1], first.targets
    if targets.is_floating_point() or not 0 <= ignored < classes:
        return
    hidden = int((targets == ignored).sum())
    if hidden:
        warn(
            f"ignore_index={ignored} is one of the model's {classes} classes: {hidden} targets of "
            "the first batch are left out, and the class is never learned.",
        )


def check_class_targets(first: FirstBatch, *, ignored: int, called: str) -> None:
    """Check class indices, or probabilities of classes, against outputs (samples, classes, ...)."""
    outputs, targets = require_tensors(first)
    shape, expected = outputs.shape, (outputs.shape[0], *outputs.shape[2:])
    has_one = outputs.dim() == 1 or shape[1] == 1
    if has_one and targets.shape in (shape, expected):
        same = "" if targets.shape == shape else " and targets.unsqueeze(1)"
        raise TaskError(
            f"The model has one output for each target (shape {tuple(shape)}), and {called} of one "
            f"class is always 0. For binary classification use surestep.losses.binary(){same}; for "
            "regression use surestep.losses.mse()."
        )
    is_hot = targets.shape == shape and bool(((targets == 0) | (targets == 1)).all())
    if is_hot and bool((targets.sum(1) != 1).any()):
        raise DataError(
            f"The targets of shape {tuple(shape)} are 0 and 1, and a sample may have several 1s or "
            "none. For labels that do not exclude each other use surestep.losses.multilabel() "
            "(nn.BCEWithLogitsLoss())."
        )
    if targets.is_floating_point():
        sums_to_one = targets.shape == shape and (targets.sum(1) - 1).abs().max() < 1e-2
        if sums_to_one and targets.min() >= 0:
            return
        raise DataError(
            f"The targets are {targets.dtype} of shape {tuple(targets.shape)}. Class indices "
            f"are integers: use targets.long(). Probabilities have the outputs' shape "
            f"{tuple(shape)} and add up to 1 for each sample. To predict numbers, use "
            "surestep.losses.mse() or huber()."
        )
    if is_hot:
        raise DataError(
            f"The model's outputs have shape {tuple(shape)} and the targets {tuple(shape)}: they "
            "are one-hot, but the loss takes class indices. Use targets.argmax(1), or "
            "targets.float() to pass them as probabilities."
        )
    if targets.dtype not in INDEX_TYPES:
        raise DataError(
            f"Class indices are int64, but the targets are {targets.dtype}: use .long()."
        )
    if targets.dtype is torch.uint8 and not 0 <= ignored < 256 and ignored % 256 < shape[1]:
        raise DataError(
            f"The targets are torch.uint8, in which ignore_index={ignored} is the class "
            f"{ignored % 256}: use .long()."
        )
    if outputs.dim() < 2 or targets.shape != expected:
        hint = "flatten or transpose the outputs."
        if targets.dim() > 1 and targets.shape[1] == 1 and targets.squeeze(1).shape == expected:
            hint = "the targets have an additional dimension of size 1. Use targets.squeeze(1)."
        elif outputs.dim() == 3 and targets.shape == shape[:2] and targets.shape[1] > 1:
            hint = (
                "the classes are last. Use surestep.losses.multiclass(class_dim=-1), or "
                "outputs.transpose(1, 2), which is slower."
            )
        raise TaskError(
            f"The model's outputs have shape {tuple(shape)} and the targets "
            f"{tuple(targets.shape)}. {called} takes outputs (samples, classes, ...) and targets "
            f"(samples, ...): {hint}"
        )
    check_index_range(targets, shape[1], ignored)


def check_index_range(targets: Tensor, classes: int, ignored: int) -> None:
    """Check that targets that are not ignored are indices of classes."""
    kept = targets[targets != ignored]
    if len(kept) and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        hint = (
            " If -1 means ignored, set ignore_index=-1; if it means no, use (targets + 1) / 2 "
            "with surestep.losses.binary()."
        )
        raise DataError(
            f"The targets run from {int(kept.min())} to {int(kept.max())}, and the model has "
            f"{classes} outputs: class indices are 0 to {classes - 1}."
            f"{hint if int(kept.min()) == -1 else ''}"
        )


def check_same_shape(first: FirstBatch) -> tuple[Tensor, Tensor]:
    """Return outputs and targets, which have one shape."""
    outputs, targets = require_tensors(first)
    if outputs.shape == targets.shape:
        return outputs, targets
    instead = ""
    if outputs.numel() != targets.numel():
        instead = " Or give the model as many outputs as there are targets."
        if outputs.dim() == targets.dim() + 1 and not targets.is_floating_point():
            count = outputs.shape[1]
            instead = f" For class indices with {count} outputs use surestep.losses.multiclass()."
    raise TaskError(
        f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
        f"{tuple(targets.shape)}: the loss would broadcast them. Use "
        f"outputs.squeeze(-1) or targets.unsqueeze(-1), so that the shapes are equal.{instead}"
    )


def check_floating(targets: Tensor, called: str) -> None:
    """Check that targets are floating point numbers."""
    if not targets.is_floating_point():
        raise DataError(
            f"The targets are {targets.dtype}, and {called} takes floating point numbers. Use "
            "targets.float()."
        )


def check_labels(first: FirstBatch, *, called: str, ignored: int | None = None) -> None:
    """Check targets between 0 and 1 and logits that the loss applies the sigmoid to."""
    check_label_targets(first.targets, called=called, ignored=ignored)
    check_logits(first, called=called, applies="sigmoid")


def check_label_targets(targets: Tensor, *, called: str, ignored: int | None = None) -> None:
    """Check that targets lie between 0 and 1."""
    kept = targets if ignored is None else targets[targets != ignored]
    if not kept.numel():
        return
    low, high = float(kept.min()), float(kept.max())
    if low >= 0 and high <= 1:
        return
    fix = "For numbers use surestep.losses.mse() or huber()."
    if bool(((kept == -1) | (kept == 1)).all()):
        fix = "Where they are -1 and 1, use (targets + 1) / 2."
    elif low >= 0 and bool((kept == kept.round()).all()):
        fix = (
            "For class indices use surestep.losses.multiclass() (nn.CrossEntropyLoss()) and "
            f"{int(high) + 1} outputs."
        )
    raise DataError(f"The targets run from {low:g} to {high:g}, and {called} takes 0 to 1. {fix}")


def check_signs(targets: Tensor, called: str) -> None:
    """Check that targets are -1 or 1."""
    if not bool(((targets == -1) | (targets == 1)).all()):
        raise DataError(
            f"The targets run from {float(targets.min()):g} to {float(targets.max()):g}, and "
            f"{called} takes -1 and 1. Where they are 0 and 1, use 2 * targets - 1."
        )


def check_log_probabilities(
    first: FirstBatch, called: str, instead: str, *, dims: tuple[int, ...] = (1,)
) -> None:
    """Check that outputs are logarithms of probabilities along one of `dims`."""
    outputs = first.outputs.detach().float()
    if outputs.dim() <= max(dims, default=0) or not outputs.numel():
        return
    if any(bool((outputs.logsumexp(dim).abs() < 5e-2).all()) for dim in dims):
        return
    what = "probabilities" if first.squashed or float(outputs.min()) >= 0 else "logits"
    raise TaskError(
        f"The model's outputs are {what}, and {called} takes log-probabilities. Use "
        f"log_softmax as the last layer, or {instead}, which takes logits."
    )
