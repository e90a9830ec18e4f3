"""What a model predicts for each sample, by the loss: a class, labels or numbers.

A loss that is not in one of these tables defines no prediction: nothing is guessed from shapes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from surestep.engine.device import sum_dtype
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.base import IGNORED, LossModule, at_least_fp32
from surestep.engine.losses.classification import Binary, MultiClass, MultiLabel
from surestep.engine.losses.language_modeling import MaskedTokens, NextToken
from surestep.engine.losses.regression import Huber, Mae, Mse

Kind = Literal["classes", "labels", "numbers"]
_CLASSES = (MultiClass, NextToken, MaskedTokens, nn.CrossEntropyLoss, nn.NLLLoss)
_LABELS = (Binary, MultiLabel, nn.BCEWithLogitsLoss, nn.BCELoss)
_NUMBERS: dict[type[nn.Module], Callable[[Any], Callable[[Tensor, Tensor], Tensor]]] = {
    **dict.fromkeys((Mse, nn.MSELoss), lambda _: partial(functional.mse_loss, reduction="none")),
    **dict.fromkeys((Mae, nn.L1Loss), lambda _: partial(functional.l1_loss, reduction="none")),
    **dict.fromkeys(
        (Huber, nn.HuberLoss),
        lambda own: partial(functional.huber_loss, reduction="none", delta=own.delta),
    ),
    nn.SmoothL1Loss: lambda own: partial(
        functional.smooth_l1_loss, reduction="none", beta=own.beta
    ),
}
_OF_TASK = {
    "none": "the step of the Task computes its own losses",
    "model": "the model computes its own loss, which does not name its prediction",
    "in training": "the model computes its losses, in train mode only",
    "other": "the loss is a custom function, which does not name its prediction",
}


class Rows(NamedTuple):
    """The predictions of a micro-batch, on the device.

    Attributes:
        kept: whether an element counts, (samples, elements); a class for each sample is one
            element, and ignored targets do not count.
        targets: classes, labels of 0 and 1, or numbers, (samples, elements).
        predictions: likewise; -1 for a class or label whose outputs are not finite.
        confidence: the probability of the predicted class or label; None for numbers.
        losses: of each sample alone, a mean over its items, (samples,).
        classes: number of classes; 2 for labels, 0 for numbers.
        has_labels: the elements of a sample are labels, and not positions such as pixels.
    """

    kept: Tensor
    targets: Tensor
    predictions: Tensor
    confidence: Tensor | None
    losses: Tensor
    classes: int
    has_labels: bool = False

    @property
    def is_wrong(self) -> Tensor:
        """Whether an element counts and has the wrong class or label, (samples, elements)."""
        return self.kept & (self.predictions != self.targets)


def find_kind(loss: Loss) -> Kind | None:
    """Return what a loss says that the outputs predict; None if it defines no prediction."""
    kind = type(loss.module)
    if loss.kind not in ("classes", "known") or not loss.is_sum or loss.teacher is not None:
        return None
    if kind in _CLASSES:
        return "classes"
    if kind in _LABELS:
        return "labels"
    return "numbers" if kind in _NUMBERS else None


def why_not_shown(loss: Loss) -> str:
    """Return why a loss defines no prediction; "" if it defines one."""
    if find_kind(loss) is not None:
        return ""
    if loss.kind in _OF_TASK:
        return _OF_TASK[loss.kind]
    if loss.teacher is not None:
        return "the loss compares the outputs with those of a teacher"
    if not loss.is_sum:
        return "the loss has a hook or a custom forward"
    name = getattr(type(loss.module), "name", loss.label)
    return f"the loss {name} does not define one prediction to compare with the target"


def choose_classes(loss: Loss, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the predicted class or label of each element, and its probability.

    Args:
        loss: defines a class or labels.
        outputs: of the model, with a row for each sample; those of classes have a class dimension.

    Returns:
        The predictions, -1 if the outputs are not finite, and their probabilities.
    """
    module = loss.module
    if find_kind(loss) == "labels":
        return _choose_labels(_find_probability(module, _wide(at_least_fp32(outputs))))
    logits = at_least_fp32(outputs).movedim(getattr(module, "class_dim", 1), 1)
    top, predictions = logits.max(1)
    is_log = isinstance(module, nn.NLLLoss)
    confidence = _wide(top if is_log else top - logits.logsumexp(1)).exp()
    return predictions.where(confidence.isfinite(), -1), confidence


def _choose_labels(probability: Tensor) -> tuple[Tensor, Tensor]:
    predictions = (probability >= 0.5).long().where(probability.isfinite(), -1)
    return predictions, torch.where(predictions == 1, probability, 1 - probability)


def _find_probability(module: Any, outputs: Tensor) -> Tensor:
    """Return the probability of the label 1."""
    return outputs if isinstance(module, nn.BCELoss) else outputs.sigmoid()


def predict_rows(loss: Loss, outputs: Tensor, targets: Tensor) -> Rows:
    """Return the predictions of a micro-batch.

    Args:
        loss: defines a prediction.
        outputs: of the model, with a row for each sample.
        targets: on the same device.
    """
    kind, module = find_kind(loss), loss.module
    if kind == "classes":
        return _predict_classes(loss, outputs, targets)
    if kind == "labels":
        return _predict_labels(loss, outputs, targets)
    assert module is not None
    outputs, targets = at_least_fp32(outputs), targets.to(at_least_fp32(outputs).dtype)
    losses = _NUMBERS[type(module)](module)(outputs, targets)
    found, wanted = _by_sample(outputs), _by_sample(targets)
    kept = torch.ones_like(found, dtype=torch.bool)
    return Rows(kept, wanted, found, None, _by_sample(losses).mean(1), classes=0)


def _predict_classes(loss: Loss, outputs: Tensor, targets: Tensor) -> Rows:
    module: Any = loss.module
    if isinstance(module, LossModule):
        targets = module.labels(targets)
        weight = getattr(module, "weights", None)
    else:
        weight = module.weight
    class_dim = getattr(module, "class_dim", 1)
    logits = at_least_fp32(outputs).movedim(class_dim, 1)
    weight = None if weight is None else weight.to(logits.dtype)
    ignored = IGNORED if module.ignore_index is None else int(module.ignore_index)
    options: dict[str, Any] = {"weight": weight, "ignore_index": ignored, "reduction": "none"}
    predictions, confidence = choose_classes(loss, outputs)
    if targets.is_floating_point():
        probabilities = targets.movedim(class_dim, 1).to(logits.dtype)
        classes = probabilities.argmax(1)
        kept = torch.ones_like(classes, dtype=torch.bool)
        counts = kept.to(logits.dtype)
    else:
        probabilities, classes = None, targets.long()
        kept = classes != ignored
        counts = kept.to(logits.dtype)
        if weight is not None:
            counts = counts * weight[classes.where(kept, 0)]
    if isinstance(module, nn.NLLLoss):
        losses = functional.nll_loss(logits, classes, **options)
    else:
        wanted = classes if probabilities is None else probabilities
        smoothing = float(module.label_smoothing)
        losses = functional.cross_entropy(logits, wanted, label_smoothing=smoothing, **options)
    return Rows(
        _by_sample(kept),
        _by_sample(classes),
        _by_sample(predictions),
        _by_sample(confidence),
        _mean(losses, counts),
        classes=logits.shape[1],
    )


def _predict_labels(loss: Loss, outputs: Tensor, targets: Tensor) -> Rows:
    module: Any = loss.module
    outputs = _wide(at_least_fp32(outputs))
    wanted, kept = targets.to(outputs.dtype), torch.ones_like(outputs, dtype=torch.bool)
    if isinstance(module, nn.BCELoss):
        losses = functional.binary_cross_entropy(outputs, wanted, module.weight, reduction="none")
    else:
        weight, pos_weight = getattr(module, "weight", None), getattr(module, "pos_weight", None)
        if isinstance(module, Binary):
            weight, pos_weight = None, module.weights_like(outputs)
            if module.ignore_index is not None:
                kept = targets != module.ignore_index
                wanted = wanted * kept
            smoothing = module.label_smoothing
            wanted = wanted * (1 - smoothing) + smoothing / 2
        losses = functional.binary_cross_entropy_with_logits(
            outputs, wanted, weight, pos_weight=pos_weight, reduction="none"
        )
    losses = losses * kept
    predictions, confidence = _choose_labels(_find_probability(module, outputs))
    labels = (targets >= 0.5).long()
    return Rows(
        _by_sample(kept),
        _by_sample(labels),
        _by_sample(predictions),
        _by_sample(confidence),
        _mean(losses, kept),
        classes=2,
        has_labels=outputs.dim() == 2 and outputs.shape[1] > 1,
    )


def _wide(tensor: Tensor) -> Tensor:
    """Return a tensor in float64 if the device has it.

    In float32, the last bit of exp() and sigmoid() of a number depends on where in a tensor it is:
    the end of a tensor is not computed by vector instructions.
    """
    return tensor.to(sum_dtype(tensor.device))


def _by_sample(tensor: Tensor) -> Tensor:
    """Return a tensor as (samples, elements)."""
    return tensor.reshape(len(tensor), -1)


def _mean(losses: Tensor, counts: Tensor) -> Tensor:
    """Return the loss of each sample, a mean over its items; 0 if it has none."""
    items = _by_sample(counts).sum(1)
    means = _by_sample(losses).sum(1) / items
    return means.where(items > 0, 0.0)
