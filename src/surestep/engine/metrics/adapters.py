"""From a model's outputs and targets to what torchmetrics takes: probabilities and classes."""

from typing import Any, Literal

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.losses.base import IGNORED as IGNORED
from surestep.engine.metrics.torchmetrics import MetricInputs

Scores = Literal["logits", "probabilities"]
_TOKENS = 4096  # looked at once, in fp64


def binary_inputs(
    outputs: Any, targets: Any, *, scores: Scores, ignore_index: int
) -> list[MetricInputs]:
    """Return P(class 1) and the class, (N,) each; outputs are (N,), (N, 1) or (N, 2)."""
    outputs, targets = _tensors(outputs, targets)
    if targets.dim() > 1 and targets.shape[-1] == 1:
        targets = targets.squeeze(-1)
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 2:
        chance = _softmax(outputs, scores)[..., 1]
    else:
        if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        chance = _sigmoid(outputs, scores)
    if chance.shape != targets.shape:
        raise TaskError(
            f"A metric of two classes takes outputs (N,), (N, 1) or (N, 2) and targets (N,), and "
            f"got {tuple(outputs.shape)} and {tuple(targets.shape)}."
        )
    return [_seen(chance.flatten(), _whole(targets).flatten(), ignore_index)]


def multilabel_inputs(
    outputs: Any, targets: Any, *, labels: int, scores: Scores, ignore_index: int
) -> list[MetricInputs]:
    """Return the probability of each label, and whether it holds, (N, labels) each."""
    outputs, targets = _tensors(outputs, targets)
    if outputs.shape != targets.shape or outputs.shape[1:] != (labels,):
        raise TaskError(
            f"A metric of {labels} labels takes outputs and targets (N, {labels}), and got "
            f"{tuple(outputs.shape)} and {tuple(targets.shape)}."
        )
    return [_seen(_sigmoid(outputs, scores), _whole(targets), ignore_index)]


def multiclass_inputs(
    outputs: Any,
    targets: Any,
    *,
    classes: int,
    class_dim: int,
    scores: Scores,
    ignore_index: int,
) -> list[MetricInputs]:
    """Return the probability of each class, (items, classes), and the class."""
    outputs, targets = _tensors(outputs, targets)
    chance = _softmax(_classes_last(outputs, targets, classes, class_dim), scores)
    return [_seen(chance.flatten(0, -2), _whole(targets).flatten(), ignore_index)]


def class_index_inputs(
    outputs: Any, targets: Any, *, classes: int, class_dim: int, ignore_index: int
) -> list[MetricInputs]:
    """Return the class that was chosen and the one that holds, (items,) each."""
    outputs, targets = _tensors(outputs, targets)
    if classes == 2 and outputs.is_floating_point():
        if targets.dim() > 1 and targets.shape[-1] == 1:
            targets = targets.squeeze(-1)
        one = outputs.squeeze(-1) if outputs.dim() > 1 and outputs.shape[-1] == 1 else outputs
        if one.shape == targets.shape:
            outputs = torch.stack((torch.zeros_like(one), one), dim=class_dim)
    if outputs.is_floating_point():
        scores = _classes_last(outputs, targets, classes, class_dim).flatten(0, -2)
        seen = _seen(scores, _whole(targets).flatten(), ignore_index)
        return [seen._replace(preds=seen.preds.argmax(dim=1))]
    if outputs.shape != targets.shape:
        raise TaskError(
            f"A confusion matrix takes class numbers of the targets' shape {tuple(targets.shape)} "
            f"or scores of each class, and got whole numbers of shape {tuple(outputs.shape)}."
        )
    return [_seen(outputs.flatten(), _whole(targets).flatten(), ignore_index)]


def token_inputs(
    outputs: Any, targets: Any, *, shift: bool, class_dim: int, ignore_index: int
) -> list[MetricInputs]:
    """Return logits (1, tokens, words) and tokens (1, tokens), some at once, in fp64.

    In fp32 the probability of a token 104 below the largest logit is 0, and its log infinite.
    """
    outputs, targets = _tensors(outputs, targets)
    last = _classes_last(outputs, targets, None, class_dim)
    if shift:
        last, targets = last[:, :-1], targets[:, 1:]
    logits, tokens = last.flatten(0, -2), _whole(targets).flatten()
    return [
        _seen(_wide(some)[None], those[None], ignore_index)
        for some, those in zip(logits.split(_TOKENS), tokens.split(_TOKENS), strict=True)
    ]


def _tensors(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    for what, value in (("outputs", outputs), ("targets", targets)):
        if not isinstance(value, Tensor):
            raise TaskError(
                f"A metric takes tensors, and the {what} are a {type(value).__name__}. Give it "
                "the tensor: a function of (outputs, targets) may call update on one of its own."
            )
    return outputs, targets


def _classes_last(outputs: Tensor, targets: Tensor, classes: int | None, dim: int) -> Tensor:
    if outputs.dim() == targets.dim() + 1:
        last = outputs.movedim(dim, -1)
        if last.shape[:-1] == targets.shape and classes in (None, last.shape[-1]):
            return last
    wanted = "classes" if classes is None else f"{classes} classes"
    raise TaskError(
        f"A metric of {wanted} in dimension {dim} does not fit outputs of shape "
        f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}. Say class_dim=1 for "
        "(N, classes, ...) or class_dim=-1 for (N, ..., classes)."
    )


def _whole(targets: Tensor) -> Tensor:
    """Return targets as whole numbers; floating point ones must be.

    Raises:
        TaskError: they are probabilities.
    """
    if targets.is_floating_point() and bool((targets != targets.round()).any()):
        odd = float(targets[targets != targets.round()][0])
        raise TaskError(
            f"The targets hold {odd:.4g}, and this metric takes classes: whole numbers. Give the "
            "classes, not their probabilities."
        )
    return targets.long()


def _wide(scores: Tensor) -> Tensor:
    """Return fp64, where a confident score is not rounded to a tie with another one."""
    return scores.float() if scores.device.type == "mps" else scores.double()


def _sigmoid(outputs: Tensor, scores: Scores) -> Tensor:
    return _wide(outputs).sigmoid() if scores == "logits" else _probabilities(outputs)


def _softmax(outputs: Tensor, scores: Scores) -> Tensor:
    return _wide(outputs).softmax(dim=-1) if scores == "logits" else _probabilities(outputs)


def _probabilities(outputs: Tensor) -> Tensor:
    outputs = _wide(outputs)
    if bool(((outputs < 0) | (outputs > 1)).any()):
        raise TaskError(
            f"scores='probabilities' was said, and the outputs lie between {outputs.min():.4g} and "
            f"{outputs.max():.4g}. Say scores='logits'."
        )
    return outputs


def _seen(preds: Tensor, targets: Tensor, ignore_index: int) -> MetricInputs:
    """Note a NaN that counts, and put 0 in its place, which is not looked at in the end."""
    nan = preds.isnan()
    wide = nan.any(dim=-1) if nan.dim() > targets.dim() else nan
    broken = (wide & (targets != ignore_index)).any()
    return MetricInputs(
        preds.nan_to_num(0.0) if preds.is_floating_point() else preds, targets, broken
    )
