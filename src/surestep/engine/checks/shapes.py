"""Whether outputs, targets and loss fit each other."""

from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import DataError, TaskError
from surestep.engine.loss import Loss


def check_shapes(outputs: Any, targets: Any, loss: Loss) -> None:
    """Check the shapes, types and ranges of outputs and targets.

    Raises:
        TaskError, DataError: they are not what the loss takes.
    """
    if loss.kind in ("other", "model"):
        return
    for what, value in (("model returns", outputs), ("targets are", targets)):
        if not isinstance(value, Tensor):
            raise TaskError(
                f"The {what} a {type(value).__name__}, and the loss takes a tensor. Return the "
                "tensor, or give a function of (outputs, targets) as loss."
            )
    if loss.kind == "classes":
        _check_classes(outputs, targets, int(getattr(loss.value, "ignore_index", -100)))
    elif outputs.shape != targets.shape:
        raise TaskError(
            f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
            f"{tuple(targets.shape)}: the loss would compare each with each. Use "
            "outputs.squeeze(-1) or targets.unsqueeze(-1) so that they are equal."
        )
    elif not targets.is_floating_point():
        raise DataError(
            f"The targets are {targets.dtype}, and {type(loss.value).__name__} takes floating "
            "point numbers. Use targets.float()."
        )


def _check_classes(outputs: Tensor, targets: Tensor, ignored: int) -> None:
    if targets.is_floating_point():
        if targets.shape != outputs.shape:
            raise DataError(
                f"The targets are {targets.dtype} of shape {tuple(targets.shape)}. Class indices "
                "are integers: use targets.long(). Probabilities have the outputs' shape "
                f"{tuple(outputs.shape)}."
            )
        return
    if targets.dtype not in (torch.int64, torch.uint8):
        raise DataError(f"Class indices are int64, and the targets {targets.dtype}: use .long().")
    expected = (outputs.shape[0], *outputs.shape[2:])
    if outputs.dim() < 2 or tuple(targets.shape) != expected:
        raise TaskError(
            f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
            f"{tuple(targets.shape)}. Cross-entropy takes outputs (samples, classes, ...) and "
            "targets (samples, ...): flatten or transpose the outputs."
        )
    kept = targets[targets != ignored]
    classes = outputs.shape[1]
    if len(kept) and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        raise DataError(
            f"The targets run from {int(kept.min())} to {int(kept.max())}, and the model has "
            f"{classes} outputs: class indices are 0 to {classes - 1}."
        )
