"""Metrics of torchmetrics, ready for a model's outputs; for `Task(metrics={...})`.

    metrics={"at": surestep.metrics.binary(), "table": surestep.metrics.confusion_matrix(10)}

Outputs are logits, as losses take them, unless `scores="probabilities"` is said. Targets of
`ignore_index` are left out. torchmetrics guesses batch by batch whether it is given logits; here it
is said, so that no batch in which all logits happen to lie between 0 and 1 is taken for
probabilities. What has nothing to be measured by, and what comes of outputs that are NaN, is NaN.
"""

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.metrics.adapters import (
    IGNORED,
    Scores,
    binary_inputs,
    class_index_inputs,
    multiclass_inputs,
    multilabel_inputs,
    token_inputs,
)
from surestep.engine.metrics.torchmetrics import TorchMetricsAdapter
from surestep.engine.metrics.whole_set import whole_set as whole_set

__all__ = [
    "best_threshold",
    "binary",
    "calibration_error",
    "confusion_matrix",
    "multilabel",
    "perplexity",
    "recall_at_precision",
    "whole_set",
]
_RATES = {
    "precision": "Precision",
    "recall": "Recall",
    "f1": "F1Score",
    "specificity": "Specificity",
    "average_precision": "AveragePrecision",
    "auroc": "AUROC",
}
_BY_RANK = ("average_precision", "auroc")


def binary(
    threshold: float = 0.5, *, scores: Scores = "logits", ignore_index: int = IGNORED
) -> TorchMetricsAdapter:
    """Return metrics of two classes, one of them rare.

    precision, recall, f1 and specificity are those of P(class 1) > threshold. average_precision
    (area under the precision-recall curve) and auroc need no threshold, and keep every score of the
    split.

    Args:
        threshold: of the probability, from 0 to 1.
        scores: what the outputs are: logits or probabilities, one per sample, (N,) or (N, 1), or
            those of two classes.
        ignore_index: targets with this value are ignored.

    Raises:
        TaskError: torchmetrics is not installed, or the threshold is not a probability.
    """
    _check_share("threshold", threshold)
    found = {
        name: _classification(f"Binary{kind}", **_of(name, threshold), ignore_index=ignore_index)
        for name, kind in _RATES.items()
    }
    found["counts"] = _classification("BinaryStatScores", threshold, ignore_index=ignore_index)
    return TorchMetricsAdapter(
        found,
        partial(binary_inputs, scores=scores, ignore_index=ignore_index),
        higher=dict.fromkeys(_RATES, True),
        finish=_known_rates,
    )


def multilabel(
    labels: int,
    threshold: float = 0.5,
    *,
    scores: Scores = "logits",
    ignore_index: int = IGNORED,
) -> TorchMetricsAdapter:
    """Return the metrics of `binary` for several labels per sample, as means over labels.

    A label that cannot be measured (no positive sample) is left out of the mean.

    Args:
        labels: number of labels; outputs and targets are (N, labels).
        threshold: of each probability, from 0 to 1.
        scores: what the outputs are: logits or probabilities.
        ignore_index: targets with this value are ignored.

    Raises:
        TaskError: torchmetrics is not installed, or the threshold is not a probability.
    """
    _check_share("threshold", threshold)
    each = {"average": "none", "ignore_index": ignore_index}
    found = {
        name: _classification(f"Multilabel{kind}", labels, **_of(name, threshold), **each)
        for name, kind in _RATES.items()
    }
    found["counts"] = _classification("MultilabelStatScores", labels, threshold, **each)
    return TorchMetricsAdapter(
        found,
        partial(multilabel_inputs, labels=labels, scores=scores, ignore_index=ignore_index),
        higher=dict.fromkeys(_RATES, True),
        finish=_known_rates,
    )


def recall_at_precision(
    min_precision: float, *, scores: Scores = "logits", ignore_index: int = IGNORED
) -> TorchMetricsAdapter:
    """Return a metric: the largest recall of two classes at a given precision, and its threshold.

    Its values are "recall" and "threshold"; if no threshold reaches the precision, they are 0 and
    NaN.

    Args:
        min_precision: from 0 to 1.
        scores: what the outputs are: logits or probabilities.
        ignore_index: targets with this value are ignored.
    """
    _check_share("min_precision", min_precision)
    # In fp32 a precision of 72 in 80 may be rounded to just below 0.9.
    least = max(0.0, min_precision - 1e-6)
    found = {
        "at": _classification("BinaryRecallAtFixedPrecision", least, ignore_index=ignore_index),
        "counts": _classification("BinaryStatScores", ignore_index=ignore_index),
    }
    return TorchMetricsAdapter(
        found,
        partial(binary_inputs, scores=scores, ignore_index=ignore_index),
        higher={"recall": True, "threshold": None},
        finish=_known_recall,
    )


def best_threshold(
    *, scores: Scores = "logits", ignore_index: int = IGNORED
) -> TorchMetricsAdapter:
    """Return a metric: the threshold of P(class 1) with the largest F1, and that F1.

    Its values are "threshold" and "f1". Choose the threshold on validation data, and measure it on
    other data with `binary(threshold)`. A score equal to the threshold counts as class 1 here, but
    not in `binary`.

    Args:
        scores: what the outputs are: logits or probabilities.
        ignore_index: targets with this value are ignored.
    """
    return TorchMetricsAdapter(
        {"curve": _classification("BinaryPrecisionRecallCurve", ignore_index=ignore_index)},
        partial(binary_inputs, scores=scores, ignore_index=ignore_index),
        higher={"f1": True, "threshold": None},
        finish=_best_of_curve,
    )


def confusion_matrix(
    classes: int, *, class_dim: int = 1, ignore_index: int = IGNORED
) -> TorchMetricsAdapter:
    """Return a metric: how often each class was predicted for each true class.

    It is a table, rows true, columns predicted. The events and `surestep evaluate` show it; it
    cannot be `validation.metric`.

    Args:
        classes: number of classes.
        class_dim: dimension of the outputs that has the classes. Outputs without it are class
            indices, or logits of class 1 if there are two classes.
        ignore_index: targets with this value are ignored.
    """
    return TorchMetricsAdapter(
        {"": _classification("MulticlassConfusionMatrix", classes, ignore_index=ignore_index)},
        partial(
            class_index_inputs, classes=classes, class_dim=class_dim, ignore_index=ignore_index
        ),
        higher=None,
        table=(classes, classes),
    )


def calibration_error(
    classes: int | None = None,
    *,
    bins: int = 15,
    scores: Scores = "logits",
    class_dim: int = 1,
    ignore_index: int = IGNORED,
) -> TorchMetricsAdapter:
    """Return a metric: the expected calibration error, the gap between confidence and accuracy.

    Source: Guo et al. 2017, https://arxiv.org/abs/1706.04599

    Args:
        classes: number of classes; None is two, by P(class 1).
        bins: number of confidence bins of equal width.
        scores: what the outputs are: logits or probabilities.
        class_dim: dimension of the outputs that has the classes.
        ignore_index: targets with this value are ignored.
    """
    said = {"n_bins": bins, "ignore_index": ignore_index}
    masking: dict[str, Any] = {"scores": scores, "ignore_index": ignore_index}
    if classes is None:
        metric = _classification("BinaryCalibrationError", **said)
        return TorchMetricsAdapter({"": metric}, partial(binary_inputs, **masking), higher=False)
    metric = _classification("MulticlassCalibrationError", classes, **said)
    prepare = partial(multiclass_inputs, classes=classes, class_dim=class_dim, **masking)
    return TorchMetricsAdapter({"": metric}, prepare, higher=False)


def perplexity(
    *, shift: bool = False, class_dim: int = -1, ignore_index: int = IGNORED
) -> TorchMetricsAdapter:
    """Return a metric: exp of the mean cross-entropy of tokens.

    Args:
        shift: the logits at t predict token t + 1 of the targets, which are the inputs, as with
            `losses.next_token()` and causal language models.
        class_dim: dimension of the logits that has the vocabulary.
        ignore_index: targets with this value are ignored.
    """
    metric = _of_torchmetrics("torchmetrics.text", "Perplexity", ignore_index=ignore_index)
    prepare = partial(token_inputs, shift=shift, class_dim=class_dim, ignore_index=ignore_index)
    return TorchMetricsAdapter({"": metric}, prepare, higher=False)


def _of(name: str, threshold: float) -> dict[str, Any]:
    return {} if name in _BY_RANK else {"threshold": threshold}


def _classification(kind: str, *args: Any, **said: Any) -> Any:
    return _of_torchmetrics("torchmetrics.classification", kind, *args, **said)


def _of_torchmetrics(module: str, kind: str, *args: Any, **said: Any) -> Any:
    try:
        home = import_module(module)
    except ImportError as error:
        raise TaskError(
            "surestep.metrics are those of torchmetrics, which is not installed. Install it: "
            "pip install 'surestep[metrics]'."
        ) from error
    return getattr(home, kind)(*args, **said)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise TaskError(f"{name}={value} is no probability. Use one from 0 to 1, such as 0.5.")


def _known_rates(values: dict[str, Any]) -> dict[str, Any]:
    """Return the mean over labels of each rate, of those that have something to be measured by."""
    counts = torch.atleast_2d(values.pop("counts"))
    right, false, spared, missed = counts[:, :4].unbind(1)
    positive, negative, chosen = right + missed > 0, spared + false > 0, right + false > 0
    known = {
        "precision": chosen,
        "recall": positive,
        "f1": positive | chosen,
        "specificity": negative,
        "average_precision": positive,
        "auroc": positive & negative,
    }
    return {
        name: torch.atleast_1d(value).where(known[name], torch.nan).nanmean()
        for name, value in values.items()
    }


def _known_recall(values: dict[str, Any]) -> dict[str, Any]:
    recall, threshold = values["at"]
    right, _, _, missed = values["counts"][:4]
    positive, reached = right + missed > 0, recall > 0
    return {
        "recall": recall.where(positive, torch.nan),
        "threshold": threshold.where(positive & reached, torch.nan),
    }


def _best_of_curve(values: dict[str, Any]) -> dict[str, Any]:
    precision, recall, thresholds = values["curve"]
    f1 = 2 * precision * recall / (precision + recall)
    f1 = f1[:-1].nan_to_num(0.0)  # the last point is no threshold
    best = f1.argmax()
    known: Tensor = f1[best] > 0
    return {
        "f1": f1[best].where(known, torch.nan),
        "threshold": thresholds[best].where(known, torch.nan),
    }
