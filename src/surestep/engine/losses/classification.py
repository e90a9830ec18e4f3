"""Binary, multi-class and multi-label classification."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from surestep.base.errors import DataError, TaskError
from surestep.engine.device import sum_dtype
from surestep.engine.losses import input_checks as expect
from surestep.engine.losses.base import (
    IGNORED,
    FirstBatch,
    LossDoc,
    LossModule,
    describe_shape,
    sum_in_fp32,
)

Weights = Sequence[float] | Tensor | Literal["balanced"] | None
_BCE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html"
_CE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html"


class WeightedLossModule(LossModule):
    """A loss with a weight for each class or label, which the training data may balance.

    Attributes:
        weight_option: the option that sets them.
        weights: on the device; None if the option is not set, or not fitted yet.
        host_weights: the same on the host, where items are counted.
    """

    weight_option: ClassVar[str]
    weights: Tensor | None

    def __post_init__(self) -> None:
        super().__post_init__()
        given, name = self.options[self.weight_option], self.weight_option
        weights = None
        if isinstance(given, str) and given != "balanced":
            raise TaskError(
                f"{name}={given!r} is not known. Use 'balanced', a number for each, or None."
            )
        if given is not None and not isinstance(given, str):
            weights = torch.as_tensor(given, dtype=torch.float64)
            if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
                raise TaskError(
                    f"{name}={given!r} has values below 0 or not finite. Use numbers from 0."
                )
        self._set_weights(weights)

    def _set_weights(self, weights: Tensor | None) -> None:
        self.host_weights = weights
        self.register_buffer("weights", weights, persistent=False)

    @property
    def needs_targets(self) -> bool:
        """Whether the weights are to be balanced by the training data."""
        return isinstance(self.options[self.weight_option], str) and self.weights is None

    def balanced(self, targets: Iterable[Any]) -> Tensor:
        """Return the weights that balance the targets, (classes or labels,) float64 on the host.

        Args:
            targets: the training targets, batch by batch.
        """
        raise NotImplementedError

    def fit(self, targets: Iterable[Any]) -> str:
        """Balance the weights, and return them as text: of many only the range."""
        weights = self.balanced(map(self._as_tensor, targets))
        self._set_weights(weights)
        values = weights.reshape(-1).tolist()
        shown = ", ".join(f"{value:.4g}" for value in values)
        if len(values) > 10:
            shown = f"{min(values):.4g} to {max(values):.4g} for {len(values)} classes"
        return f"{self.weight_option}={shown}"

    def _as_tensor(self, targets: Any) -> Tensor:
        try:
            return targets if isinstance(targets, Tensor) else torch.as_tensor(np.asarray(targets))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{self.weight_option}='balanced' counts targets, and those of a batch are "
                f"{describe_shape(targets)}. Use {self.weight_option}=[...] instead."
            ) from error

    def weights_like(self, outputs: Tensor) -> Tensor | None:
        """Return the weights in the dtype of the outputs; None if the option is not set.

        Args:
            outputs: what the model returned.

        Raises:
            TaskError: the weights are not fitted yet.
        """
        self.check_fitted()
        return None if self.weights is None else self.weights.to(outputs.dtype)


def _check_none_empty(counts: Tensor, what: str, option: str) -> None:
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty or not len(counts):
        raise DataError(
            f"The training data has no sample of {what} {', '.join(map(str, empty)) or '0'}, so "
            f"{option}='balanced' is not defined for it. Use {option}=[...], a number for each."
        )


@dataclass(eq=False, repr=False, kw_only=True)
class MultiClass(WeightedLossModule):
    """Multi-class classification: cross-entropy of logits with class indices or probabilities.

    Args:
        weight: one number per class, or "balanced": samples / (classes * samples of the class) in
            the training data.
        label_smoothing: share of each target that is spread over all classes.
        ignore_index: targets with this value are ignored.
        class_dim: dimension of the outputs that has the classes; -1 reads (N, ..., C), such as the
            outputs of a recurrent model, without a transposed copy.
    """

    name = "multiclass"
    doc = LossDoc(
        "multi-class classification",
        "logits (N, C, ...), or (N, ..., C) with class_dim=-1",
        "indices (N, ...) int64, or probabilities, same shape as the outputs",
        "-sum_c w_c q_c log softmax(x)_c; q is the target, smoothed: (1 - s) q + s / C",
        "sum of the weights of targets that are not ignored; samples if targets are probabilities",
        _CE,
    )

    over = "kept"
    weight_option = "weight"
    weight: Weights = None
    label_smoothing: float = 0.0
    ignore_index: int = IGNORED
    class_dim: Literal[1, -1] = 1

    def balanced(self, targets: Iterable[Any]) -> Tensor:
        """Return samples / (classes * samples of the class), for each class.

        Source: sklearn.utils.class_weight.compute_class_weight("balanced").
        """
        counts = torch.zeros(0, dtype=torch.int64)
        for batch in targets:
            if batch.is_floating_point():
                raise DataError(
                    f"weight='balanced' counts class indices, and the targets are {batch.dtype}. "
                    "Use weight=[...] instead."
                )
            kept = batch[batch != self.ignore_index].flatten().long().cpu()
            if len(kept) and int(kept.min()) < 0:
                raise DataError(f"A target is {int(kept.min())}: class indices start from 0.")
            found = torch.bincount(kept, minlength=len(counts))
            counts = found + functional.pad(counts, (0, len(found) - len(counts)))
        _check_none_empty(counts, "class", "weight")
        return counts.sum().double() / (len(counts) * counts.double())

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy summed."""
        if self.class_dim == -1:
            outputs, targets = outputs.flatten(0, -2), self._as_rows(targets)
        weight = self.weights_like(outputs)
        return sum_in_fp32(
            functional.cross_entropy,
            outputs,
            targets.to(outputs.dtype) if targets.is_floating_point() else targets.long(),
            weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )

    def items(self, batch: Any, targets: Tensor) -> float:
        """Count targets that are not ignored, by their weights; probabilities by samples."""
        self.check_fitted()
        return weighted_count(self._as_rows(targets), self.host_weights, self.ignore_index)

    def _as_rows(self, targets: Tensor) -> Tensor:
        """Return targets as rows where the classes are last: a view, as of the outputs."""
        if self.class_dim == 1 or targets.dim() < 2:
            return targets
        return targets.flatten(0, -2) if targets.is_floating_point() else targets.flatten()

    def count(self, targets: Tensor) -> int:
        """Count targets that are not ignored, or samples if targets are probabilities."""
        return targets.shape[0] if targets.is_floating_point() else super().count(targets)

    def check(self, first: FirstBatch) -> None:
        """Check indices or probabilities against the outputs."""
        first = self._with_rows(first)
        expect.check_classes(first, ignored=self.ignore_index, called=self.name)
        if first.targets.is_floating_point() and self.ignore_index != IGNORED:
            raise TaskError(
                f"ignore_index={self.ignore_index} is for class indices, but the targets are "
                "probabilities. Leave it out."
            )
        classes = first.outputs.shape[1]
        if self.host_weights is not None and self.host_weights.shape != (classes,):
            raise TaskError(
                f"There are {self.host_weights.numel()} class weights, and the model has {classes} "
                "outputs. Give a weight for each output."
            )

    def _with_rows(self, first: FirstBatch) -> FirstBatch:
        """Return outputs and targets as rows where the classes are last."""
        if self.class_dim == 1:
            return first
        outputs, targets = expect.require_tensors(first)
        expected = outputs.shape if targets.is_floating_point() else outputs.shape[:-1]
        if outputs.dim() < 2 or targets.shape != expected:
            hint = "Leave class_dim=-1 out where the classes are in dimension 1."
            raise self.shape_error(first, hint)
        return first._replace(outputs=outputs.flatten(0, -2), targets=self._as_rows(targets))


def weighted_count(targets: Tensor, weight: Tensor | None, ignored: int) -> float:
    """Count targets that are not ignored, by their class weights; probabilities count as one.

    That torch divides by the number of samples where targets are probabilities, whatever the
    weights, is what torch.nn.CrossEntropyLoss does and documents.
    """
    if targets.is_floating_point():
        return targets.numel() // (targets.shape[1] if targets.dim() > 1 else targets.shape[0])
    kept = targets != ignored
    if weight is None:
        return int(kept.sum())
    try:
        return float(
            weight.to(targets.device)[targets[kept].long()].to(sum_dtype(targets.device)).sum()
        )
    except IndexError as error:
        raise DataError(
            f"There are {len(weight)} class weights, and the targets run from "
            f"{int(targets[kept].min())} to {int(targets[kept].max())}. Give a weight for each "
            f"class, and targets from 0 to {len(weight) - 1}."
        ) from error


@dataclass(eq=False, repr=False, kw_only=True)
class Binary(WeightedLossModule):
    """Binary classification: binary cross-entropy of one logit per sample.

    Args:
        pos_weight: weight of targets of 1, or "balanced": number of targets of 0 / number of
            targets of 1 in the training data.
        label_smoothing: share by which targets are moved toward 1/2.
        ignore_index: targets with this value are ignored.

    Raises:
        TaskError: an option is out of its range.
    """

    name = "binary"
    doc = LossDoc(
        "binary classification",
        "logits (N,) or (N, 1), same shape as the targets",
        "0 to 1, same shape as the outputs",
        "-p t log s(x) - (1 - t) log(1 - s(x)); t smoothed: (1 - e) t + e / 2; p is pos_weight",
        "targets that are not ignored, regardless of weight",
        _BCE,
    )
    over = "kept"
    weight_option = "pos_weight"
    per_label: ClassVar[bool] = False
    pos_weight: float | Weights = None
    label_smoothing: float = 0.0
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore_index in (0, 1):
            raise TaskError(
                f"ignore_index={self.ignore_index} is a label. Use another, such as -1."
            )

    def balanced(self, targets: Iterable[Any]) -> Tensor:
        """Return targets of 0 / targets of 1: of each label (dim 1), or of all."""
        positives = negatives = torch.zeros((), dtype=torch.int64)
        for batch in targets:
            yes, no = batch == 1, batch == 0
            if bool((~yes & ~no & (batch != self.ignore_index)).any()):
                raise DataError(
                    "pos_weight='balanced' counts targets that are 0 or 1, and some are neither. "
                    "Use pos_weight=... instead; for class indices use "
                    "surestep.losses.multiclass()."
                )
            dims = (0,) if self.per_label else tuple(range(batch.dim()))
            positives = positives + yes.sum(dims).cpu()
            negatives = negatives + no.sum(dims).cpu()
        _check_none_empty(positives.reshape(-1), "label", "pos_weight")
        return negatives.double() / positives.double()

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross-entropy summed."""
        wanted = targets.to(outputs.dtype)
        mask = None
        if self.ignore_index is not None:
            mask = (targets != self.ignore_index).to(outputs.dtype)
            wanted = wanted * mask
        if self.label_smoothing:
            wanted = wanted * (1 - self.label_smoothing) + self.label_smoothing / 2
        weight = self.weights_like(outputs)
        function = functional.binary_cross_entropy_with_logits
        return sum_in_fp32(function, outputs, wanted, mask, pos_weight=weight)

    def check(self, first: FirstBatch) -> None:
        """Check shapes and ranges."""
        outputs, targets = expect.require_tensors(first)
        if outputs.dim() == targets.dim() + 1 and outputs.shape[1] == 2:
            hint = "For two outputs for each target use surestep.losses.multiclass()."
            raise self.shape_error(first, hint)
        expect.check_same_shape(first)
        expect.check_labels(first, called=self.name, ignored=self.ignore_index)
        if not self.per_label and self.weights is not None and self.weights.numel() > 1:
            raise TaskError(
                f"There are {self.weights.numel()} numbers in pos_weight, but binary takes one: "
                "the weight of targets that are 1. For several labels use "
                "surestep.losses.multilabel()."
            )


class MultiLabel(Binary):
    """Multi-label classification: binary cross-entropy of one logit per label.

    Args:
        pos_weight: weight of targets of 1, per label, or "balanced": number of targets of 0 /
            number of targets of 1 of each label in the training data.
        label_smoothing: share by which targets are moved toward 1/2.
        ignore_index: targets with this value are ignored.
    """

    name = "multilabel"
    doc = LossDoc(
        "multi-label classification",
        "logits (N, L)",
        "0 to 1 (N, L)",
        "-p_l t log s(x) - (1 - t) log(1 - s(x)); t smoothed: (1 - e) t + e / 2; p is pos_weight",
        "targets (samples times labels) that are not ignored, regardless of weight",
        _BCE,
    )
    per_label = True

    def check(self, first: FirstBatch) -> None:
        """Check shapes and ranges, and that there is a weight for each label."""
        outputs, targets = expect.require_tensors(first)
        if outputs.dim() != 2:
            hint = "For one label use surestep.losses.binary()."
            raise self.shape_error(first, hint)
        if targets.dim() == 1:
            hint = "For class indices use surestep.losses.multiclass()."
            raise self.shape_error(first, hint)
        super().check(first)
        weights = 1 if self.weights is None else self.weights.numel()
        if weights not in (1, outputs.shape[1]):
            raise TaskError(
                f"There are {weights} numbers in pos_weight, and the model has {outputs.shape[1]} "
                "outputs. Give one for each label."
            )
