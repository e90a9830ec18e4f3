"""Checks of the first batch by losses: shapes, types and ranges, and what to use instead."""

from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import DataError, TaskError
from surestep.base.warn import warn
from surestep.engine.losses.base import FirstBatch

INDEX_TYPES = (torch.int64, torch.uint8)
SILENCE = "If it is meant, give the loss as a function of (outputs, targets)."
MANY = 32  # outputs that all lie between 0 and 1 are hardly so by chance


def require_tensors(first: FirstBatch) -> tuple[Tensor, Tensor]:
    """Return outputs and targets.

    Raises:
        TaskError: one of them is not a tensor.
    """
    for what, value in (("model returns", first.outputs), ("targets are", first.targets)):
        if not isinstance(value, Tensor):
            raise TaskError(
                f"The {what} a {type(value).__name__}, and the loss takes a tensor. Return the "
                "tensor, or give a function of (outputs, targets) as loss."
            )
    return first.outputs, first.targets


def as_tuple(value: Any, wanted: tuple[str, ...], called: str) -> tuple[Tensor, ...]:
    """Return what a loss takes as several tensors: a tuple, or one tensor stacked along dim 1.

    Raises:
        TaskError: their number is different.
    """
    if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[1] == len(wanted):
        return value.unbind(1)
    if isinstance(value, (tuple, list)) and len(value) == len(wanted):
        return tuple(value)
    shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
    length = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    raise TaskError(
        f"{called} compares {', '.join(wanted)}, and the model returns "
        f"{shape or f'a {type(value).__name__}{length}'}. Return a tuple ({', '.join(wanted)}), or "
        f"one tensor (samples, {len(wanted)}, ...)."
    )


def check_class_logits(first: FirstBatch, *, called: str = "Cross-entropy", dim: int = 1) -> None:
    """Reject probabilities if the loss takes logits of classes.

    Raises:
        TaskError: they went through softmax or sigmoid, or add up to one.
    """
    outputs = first.outputs.detach()
    if first.squashed == "sigmoid":
        raise TaskError(
            f"The model's outputs went through a sigmoid, and {called} takes logits: it applies "
            "softmax itself. Leave the sigmoid out; or, where several classes can hold at once, "
            f"use surestep.losses.multilabel() without it. {SILENCE}"
        )
    if first.squashed == "softmax" or is_distribution(outputs, dim):
        raise TaskError(
            f"The model's outputs are probabilities: they went through a softmax or add up to 1, "
            f"and {called} takes logits: it applies softmax itself. Leave the softmax out of the "
            f"model. {SILENCE}"
        )


def is_distribution(values: Tensor, dim: int) -> bool:
    """Return whether all values are probabilities of classes along `dim`."""
    if values.dim() <= dim or values.shape[dim] < 2 or values.numel() == 0 or values.min() < 0:
        return False
    slack = 2e-2 if values.dtype in (torch.bfloat16, torch.float16) else 1e-3
    return bool(((values.float().sum(dim) - 1).abs() < slack).all())


def check_label_logits(first: FirstBatch, *, called: str) -> None:
    """Reject probabilities if the loss applies the sigmoid itself.

    Raises:
        TaskError: the outputs went through a sigmoid or softmax.
    """
    if first.squashed is not None:
        raise TaskError(
            f"The model's outputs went through a {first.squashed}, and {called} takes logits: it "
            f"applies the sigmoid itself. Leave the {first.squashed} out of the model. {SILENCE}"
        )
    outputs = first.outputs.detach()
    if outputs.numel() >= MANY and float(outputs.min()) > 0 and float(outputs.max()) < 1:
        warn(
            f"All outputs of the first batch lie between 0 and 1, as after a sigmoid, and {called} "
            "takes logits: it applies the sigmoid itself. Leave a sigmoid out of the model.",
        )


def check_class_targets(first: FirstBatch, *, ignored: int, called: str = "Cross-entropy") -> None:
    """Check class indices, or probabilities of classes, against outputs (samples, classes, ...).

    Raises:
        TaskError, DataError: they do not fit.
    """
    outputs, targets = require_tensors(first)
    _enough_classes(outputs, targets, called)
    if targets.is_floating_point():
        _probability_targets(outputs, targets)
        return
    if targets.shape == outputs.shape and outputs.dim() >= 2:
        _not_one_hot(outputs, targets)
    if targets.dtype not in INDEX_TYPES:
        raise DataError(f"Class indices are int64, and the targets {targets.dtype}: use .long().")
    if targets.dtype is torch.uint8 and not 0 <= ignored < 256 and ignored % 256 < outputs.shape[1]:
        raise DataError(
            f"The targets are torch.uint8, in which ignore_index={ignored} is the class "
            f"{ignored % 256}: use .long()."
        )
    expected = (outputs.shape[0], *outputs.shape[2:])
    if outputs.dim() < 2 or tuple(targets.shape) != expected:
        raise TaskError(
            f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
            f"{tuple(targets.shape)}. {called} takes outputs (samples, classes, ...) and "
            f"targets (samples, ...): {_reshaped(outputs, targets, expected)}"
        )
    check_index_range(targets, outputs.shape[1], ignored)


def _reshaped(outputs: Tensor, targets: Tensor, expected: tuple[int, ...]) -> str:
    """Return how to make the shapes fit."""
    if targets.dim() > 1 and targets.shape[1] == 1 and tuple(targets.squeeze(1).shape) == expected:
        return "there is a dimension of one too many. Use targets.squeeze(1)."
    if outputs.dim() == 3 and targets.shape == outputs.shape[:2] and targets.shape[1] > 1:
        return (
            "the classes are last. Use surestep.losses.multiclass(class_dim=-1), or "
            "outputs.transpose(1, 2), which is slower."
        )
    return "flatten or transpose the outputs."


def check_index_range(targets: Tensor, classes: int, ignored: int | None) -> None:
    """Check that targets that are not ignored are indices of classes.

    Raises:
        DataError: they are not.
    """
    kept = targets if ignored is None else targets[targets != ignored]
    if len(kept) and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        hint = ""
        if int(kept.min()) == -1:
            hint = (
                " If -1 means ignored, set ignore_index=-1; if it means no, use (targets + 1) / 2 "
                "with surestep.losses.binary()."
            )
        raise DataError(
            f"The targets run from {int(kept.min())} to {int(kept.max())}, and the model has "
            f"{classes} outputs: class indices are 0 to {classes - 1}.{hint}"
        )


def warn_of_ignored_class(targets: Tensor, classes: int, ignored: int | None) -> None:
    """Warn if the index that is ignored is that of a class."""
    if ignored is None or targets.is_floating_point() or not 0 <= ignored < classes:
        return
    hidden = int((targets == ignored).sum())
    if hidden:
        warn(
            f"ignore_index={ignored} is one of the model's {classes} classes: {hidden} targets of "
            "the first batch are left out, and the class is never learned.",
        )


def _enough_classes(outputs: Tensor, targets: Tensor, called: str) -> None:
    shape = tuple(outputs.shape)
    one = outputs.dim() == 1 or outputs.shape[1] == 1
    if one and tuple(targets.shape) in (shape, (shape[0], *shape[2:])):
        same = "" if tuple(targets.shape) == shape else " and targets.unsqueeze(1)"
        raise TaskError(
            f"The model has one output for each target (shape {shape}), and {called.lower()} of "
            f"one class is always 0. For yes or no use surestep.losses.binary(){same}; for numbers "
            "surestep.losses.mse()."
        )


def _probability_targets(outputs: Tensor, targets: Tensor) -> None:
    if targets.shape != outputs.shape:
        raise DataError(
            f"The targets are {targets.dtype} of shape {tuple(targets.shape)}. Class indices "
            "are integers: use targets.long(). Probabilities have the outputs' shape "
            f"{tuple(outputs.shape)}. To predict numbers, use surestep.losses.mse() or huber()"
            "."
        )
    if float(targets.min()) >= 0 and bool(((targets.sum(1) - 1).abs() < 1e-2).all()):
        return
    if bool(((targets == 0) | (targets == 1)).all()):
        raise DataError(
            "The targets are 0 and 1 and do not add up to 1 for each sample: labels of which "
            "several or none can hold. Use surestep.losses.multilabel() "
            "(nn.BCEWithLogitsLoss())."
        )
    raise DataError(
        f"The targets have the outputs' shape, which says that they are probabilities, but they "
        f"run from {float(targets.min()):.4g} to {float(targets.max()):.4g} and do not add up to 1 "
        "for each sample. Divide them by their sum; to predict numbers, use "
        "surestep.losses.mse() or huber()."
    )


def _not_one_hot(outputs: Tensor, targets: Tensor) -> None:
    shapes = (
        f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
        f"{tuple(targets.shape)}"
    )
    if not bool(((targets == 0) | (targets == 1)).all()):
        return
    if bool((targets.sum(1) == 1).all()):
        raise DataError(
            f"{shapes}: they are one-hot, and class indices belong here. Use targets.argmax(1), or "
            "targets.float() to take them as probabilities."
        )
    raise DataError(
        f"{shapes}, of 0 and 1, several or none for a sample. For labels that do not exclude each "
        "other use surestep.losses.multilabel() (nn.BCEWithLogitsLoss())."
    )


def check_same_shape(first: FirstBatch) -> tuple[Tensor, Tensor]:
    """Check that outputs and targets have one shape.

    Raises:
        TaskError: they have not.
    """
    outputs, targets = require_tensors(first)
    if outputs.shape == targets.shape:
        return outputs, targets
    one = outputs.numel() == targets.numel()
    instead = ""
    if not one and outputs.dim() == targets.dim() + 1 and not targets.is_floating_point():
        instead = (
            f" For class indices with {outputs.shape[1]} outputs use surestep.losses.multiclass()."
        )
    elif not one:
        instead = " Or give the model as many outputs as there are targets."
    raise TaskError(
        f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
        f"{tuple(targets.shape)}: the loss would compare each with each. Use "
        "outputs.squeeze(-1) or targets.unsqueeze(-1) so that they are equal." + instead
    )


def check_floating(targets: Tensor, called: str) -> None:
    """Check that targets are floating point numbers.

    Raises:
        DataError: they are not.
    """
    if not targets.is_floating_point():
        raise DataError(
            f"The targets are {targets.dtype}, and {called} takes floating "
            "point numbers. Use targets.float()."
        )


def check_label_targets(targets: Tensor, *, called: str, ignored: int | None = None) -> None:
    """Check that targets lie between 0 and 1.

    Raises:
        DataError: they do not.
    """
    kept = targets if ignored is None else targets[targets != ignored]
    if not kept.numel():
        return
    low, high = float(kept.min()), float(kept.max())
    if low >= 0 and high <= 1:
        return
    says = f"The targets run from {low:g} to {high:g}, and {called} takes 0 to 1."
    if bool(((kept == -1) | (kept == 1)).all()):
        raise DataError(f"{says} Where they are -1 and 1, use (targets + 1) / 2.")
    if bool((kept == kept.round()).all()) and low >= 0:
        raise DataError(
            f"{says} For class indices use surestep.losses.multiclass() (nn.CrossEntropyLoss()) "
            f"and {int(high) + 1} outputs."
        )
    raise DataError(f"{says} For numbers use surestep.losses.mse() or huber().")


def check_signs(targets: Tensor, called: str) -> None:
    """Check that targets are -1 or 1.

    Raises:
        DataError: they are not.
    """
    if not bool(((targets == -1) | (targets == 1)).all()):
        raise DataError(
            f"The targets run from {float(targets.min()):g} to {float(targets.max()):g}, and "
            f"{called} takes -1 and 1. Where they are 0 and 1, use 2 * targets - 1."
        )


def check_probabilities(outputs: Tensor, called: str, instead: str) -> None:
    """Check that outputs lie between 0 and 1.

    Raises:
        TaskError: they do not.
    """
    low, high = float(outputs.min()), float(outputs.max())
    if low < 0 or high > 1:
        raise TaskError(
            f"The model's outputs run from {low:.4g} to {high:.4g}, and {called} takes "
            f"probabilities. Use {instead}, which takes logits."
        )


def check_log_probabilities(
    first: FirstBatch, called: str, instead: str, *, dims: tuple[int, ...] = (1,)
) -> None:
    """Check that outputs are logarithms of probabilities along one of `dims`.

    Raises:
        TaskError: they are probabilities or logits.
    """
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
