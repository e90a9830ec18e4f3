"""Binary, multi-class and multi-label classification."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from surestep.base.errors import DataError, TaskError
from surestep.engine.losses import input_checks as expect
from surestep.engine.losses.base import IGNORED, FirstBatch, LossDoc, LossModule, sum_in_fp32

Balanced = Literal["balanced"]
_BCE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html"
_CE = "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html"


def check_fraction(value: float, name: str) -> float:
    """Return a share between 0 and 1.

    Raises:
        TaskError: it is not.
    """
    if not 0 <= value <= 1:
        raise TaskError(f"{name}={value} is not a share. Use a number from 0 to 1.")
    return value


def checked_class_dim(value: int) -> int:
    """Return the dimension of the classes: 1 or -1.

    Raises:
        TaskError: it is neither.
    """
    if value not in (1, -1):
        raise TaskError(
            f"class_dim={value} is not supported. Use 1 for outputs (samples, classes, ...), or "
            "-1 for outputs (samples, ..., classes)."
        )
    return value


def parse_class_weights(
    value: Balanced | Sequence[float] | Tensor | None, name: str
) -> Tensor | None:
    """Return the weights as a tensor; None if they are not known yet.

    Raises:
        TaskError: neither numbers of at least 0 nor "balanced".
    """
    if value is None or (isinstance(value, str) and value == "balanced"):
        return None
    if isinstance(value, str):
        raise TaskError(
            f"{name}={value!r} is not known. Use 'balanced', a number for each, or None."
        )
    weight = torch.as_tensor(value, dtype=torch.float64)
    if not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
        raise TaskError(f"{name}={value!r} has values below 0 or not finite. Use numbers from 0.")
    return weight


def balanced_classes(targets: Iterable[Any], ignored: int) -> Tensor:
    """Return samples / (classes * samples of the class), for each class.

    Source: sklearn.utils.class_weight.compute_class_weight("balanced").

    Raises:
        DataError: targets are not class indices, or a class between others has no sample.
    """
    counts = torch.zeros(0, dtype=torch.int64)
    for batch in targets:
        if not isinstance(batch, Tensor) or batch.is_floating_point():
            raise DataError(
                "weight='balanced' counts class indices, and the targets are something else. Use "
                "weight=[...] instead."
            )
        kept = batch[batch != ignored].flatten().long().cpu()
        if len(kept) and int(kept.min()) < 0:
            raise DataError(f"A target is {int(kept.min())}: class indices start from 0.")
        found = torch.bincount(kept, minlength=len(counts))
        counts = found + torch.nn.functional.pad(counts, (0, len(found) - len(counts)))
    _none_empty(counts, "class", "weight")
    return counts.sum().double() / (len(counts) * counts.double())


def balanced_labels(targets: Iterable[Any], ignored: int | None, *, per_label: bool) -> Tensor:
    """Return negatives / positives: of each label (dim 1), or of all.

    Raises:
        DataError: a label is never 1.
    """
    positives = negatives = torch.zeros(())
    for batch in targets:
        kept = torch.ones_like(batch, dtype=torch.bool) if ignored is None else batch != ignored
        dims = (0,) if per_label else tuple(range(batch.dim()))
        yes, no = (batch == 1) & kept, (batch == 0) & kept
        if bool((kept & ~yes & ~no).any()):
            raise DataError(
                "pos_weight='balanced' counts targets that are 0 or 1, and some are neither. Use "
                "pos_weight=... instead; for class indices use surestep.losses.multiclass()."
            )
        positives = positives + yes.sum(dims).cpu()
        negatives = negatives + no.sum(dims).cpu()
    _none_empty(positives.reshape(-1), "label", "pos_weight")
    return negatives.double() / positives.double()


def _none_empty(counts: Tensor, what: str, option: str) -> None:
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty or not len(counts):
        raise DataError(
            f"The training data has no sample of {what} {', '.join(map(str, empty)) or '0'}, so "
            f"{option}='balanced' is not defined for it. Use {option}=[...], a number for each."
        )


def format_weights(weight: Tensor | None) -> str:
    """Return weights for people; of many only the range."""
    values = [] if weight is None else weight.reshape(-1).tolist()
    if len(values) > 10:
        return f"{min(values):.4g} to {max(values):.4g} for {len(values)} classes"
    return ", ".join(f"{value:.4g}" for value in values)


class MultiClass(LossModule):
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
    weight: Tensor | None
    ignore_index: int

    def __init__(
        self,
        *,
        weight: Balanced | Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int = IGNORED,
        class_dim: Literal[1, -1] = 1,
    ) -> None:
        check_fraction(label_smoothing, "label_smoothing")
        super().__init__(
            weight=weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            class_dim=class_dim,
        )
        self.class_dim = checked_class_dim(class_dim)
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index
        self._weigh(parse_class_weights(weight, "weight"))

    def _weigh(self, weight: Tensor | None) -> None:
        # Items are counted on the host, so a copy stays there when the buffer is moved.
        self.host_weight = weight
        self.register_buffer("weight", weight, persistent=False)

    @property
    def needs_targets(self) -> bool:
        """Whether the weights are to be balanced by the training data."""
        return isinstance(self.options["weight"], str) and self.weight is None

    def fit(self, targets: Iterable[Any]) -> None:
        """Balance the weights."""
        self._weigh(balanced_classes(targets, self.ignore_index))

    def describe_fit(self) -> str:
        """Describe the weights."""
        return f"weight={format_weights(self.host_weight)}"

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy summed."""
        if self.class_dim == -1:
            outputs, targets = outputs.flatten(0, -2), self._as_rows(targets)
        weight = None if self.weight is None else self.weight.to(outputs.dtype)
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
        return weighted_count(self._as_rows(targets), self.host_weight, self.ignore_index)

    def _as_rows(self, targets: Tensor) -> Tensor:
        """Return targets as rows where the classes are last: a view, as of the outputs."""
        if self.class_dim == 1 or targets.dim() < 2:
            return targets
        return targets.flatten(0, -2) if targets.is_floating_point() else targets.flatten()

    def count_classes(self, outputs: Tensor) -> int:
        """Count the classes that outputs choose among."""
        rows = outputs if self.class_dim == 1 else outputs.flatten(0, -2)
        return int(torch.atleast_2d(rows).shape[1])

    def count(self, targets: Tensor) -> int:
        """Count targets that are not ignored, or samples if targets are probabilities."""
        return targets.shape[0] if targets.is_floating_point() else super().count(targets)

    def check(self, first: FirstBatch) -> None:
        """Check indices or probabilities against the outputs."""
        first = self._with_rows(first)
        expect.check_class_targets(first, ignored=self.ignore_index)
        expect.check_class_logits(first)
        if first.targets.is_floating_point() and self.ignore_index != IGNORED:
            raise TaskError(
                f"ignore_index={self.ignore_index} is of indices, and the targets are "
                "probabilities. Leave it out."
            )
        classes = first.outputs.shape[1]
        expect.warn_of_ignored_class(first.targets, classes, self.ignore_index)
        if self.host_weight is not None and self.host_weight.shape != (classes,):
            raise TaskError(
                f"There are {self.host_weight.numel()} class weights, and the model has {classes} "
                "outputs. Give a weight for each output."
            )

    def _with_rows(self, first: FirstBatch) -> FirstBatch:
        """Return outputs and targets as rows where the classes are last.

        Raises:
            TaskError: their shapes do not fit.
        """
        if self.class_dim == 1:
            return first
        outputs, targets = expect.require_tensors(first)
        expected = outputs.shape if targets.is_floating_point() else outputs.shape[:-1]
        if outputs.dim() < 2 or targets.shape != expected:
            raise TaskError(
                f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
                f"{tuple(targets.shape)}. multiclass(class_dim=-1) takes outputs (samples, ..., "
                "classes) and targets (samples, ...). Leave class_dim out where the classes are "
                "in dimension 1."
            )
        return first._replace(outputs=outputs.flatten(0, -2), targets=self._as_rows(targets))


def weighted_count(targets: Tensor, weight: Tensor | None, ignored: int) -> float:
    """Count targets that are not ignored, by their class weights; probabilities count as one.

    That torch divides by the number of samples where targets are probabilities, whatever the
    weights, is what torch.nn.CrossEntropyLoss does and documents.

    Raises:
        DataError: a target has no weight.
    """
    if targets.is_floating_point():
        return targets.numel() // (targets.shape[1] if targets.dim() > 1 else targets.shape[0])
    kept = targets != ignored
    if weight is None:
        return int(kept.sum())
    try:
        return float(weight.to(targets.device)[targets[kept].long()].double().sum())
    except IndexError as error:
        raise DataError(
            f"There are {len(weight)} class weights, and the targets run from "
            f"{int(targets[kept].min())} to {int(targets[kept].max())}. Give a weight for each "
            f"class, and targets from 0 to {len(weight) - 1}."
        ) from error


class Binary(LossModule):
    """Binary classification: binary cross-entropy of one logit per sample.

    Args:
        pos_weight: weight of targets of 1, or "balanced": number of targets of 0 / number of
            targets of 1 in the training data.
        label_smoothing: share by which targets are moved toward 1/2.
        ignore_index: targets with this value are ignored.
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
    per_label = False
    pos_weight: Tensor | None

    def __init__(
        self,
        *,
        pos_weight: Balanced | float | Sequence[float] | Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
    ) -> None:
        check_fraction(label_smoothing, "label_smoothing")
        if ignore_index in (0, 1):
            raise TaskError(f"ignore_index={ignore_index} is a label. Use another, such as -1.")
        super().__init__(
            pos_weight=pos_weight, label_smoothing=label_smoothing, ignore_index=ignore_index
        )
        self.label_smoothing = label_smoothing
        self.ignore_index = ignore_index
        values: Any = (
            [pos_weight] if isinstance(pos_weight, float | int) and self.per_label else pos_weight
        )
        weights = parse_class_weights(values, "pos_weight")
        self.register_buffer("pos_weight", weights, persistent=False)

    @property
    def needs_targets(self) -> bool:
        """Whether pos_weight is to be balanced by the training data."""
        return isinstance(self.options["pos_weight"], str) and self.pos_weight is None

    def fit(self, targets: Iterable[Any]) -> None:
        """Balance pos_weight."""
        self.pos_weight = balanced_labels(targets, self.ignore_index, per_label=self.per_label)

    def describe_fit(self) -> str:
        """Describe pos_weight."""
        return f"pos_weight={format_weights(self.pos_weight)}"

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross-entropy summed."""
        wanted = targets.to(outputs.dtype)
        mask = None
        if self.ignore_index is not None:
            mask = (targets != self.ignore_index).to(outputs.dtype)
            wanted = wanted * mask
        if self.label_smoothing:
            wanted = wanted * (1 - self.label_smoothing) + self.label_smoothing / 2
        weight = None if self.pos_weight is None else self.pos_weight.to(outputs.dtype)
        function = functional.binary_cross_entropy_with_logits
        return sum_in_fp32(function, outputs, wanted, mask, pos_weight=weight)

    def check(self, first: FirstBatch) -> None:
        """Check shapes and ranges."""
        outputs, targets = expect.require_tensors(first)
        if outputs.dim() == targets.dim() + 1 and outputs.shape[1] == 2:
            raise TaskError(
                f"The model has two outputs for each target (shape {tuple(outputs.shape)}), and "
                f"{self.name} takes one. Give the model one, or use surestep.losses.multiclass()."
            )
        expect.check_same_shape(first)
        expect.check_label_targets(targets, called=self.name, ignored=self.ignore_index)
        expect.check_label_logits(first, called=self.name)
        if not self.per_label and self.pos_weight is not None and self.pos_weight.numel() > 1:
            raise TaskError(
                f"There are {self.pos_weight.numel()} numbers in pos_weight, and binary takes one: "
                "what a target of 1 weighs. For several labels use surestep.losses.multilabel()."
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
            raise TaskError(
                f"The model's outputs have shape {tuple(outputs.shape)}, and multilabel takes "
                "(samples, labels). For one label use surestep.losses.binary()."
            )
        if targets.dim() == 1 and not targets.is_floating_point():
            raise DataError(
                f"The targets are one integer for each sample (shape {tuple(targets.shape)}), and "
                "multilabel takes 0 or 1 for each label. For class indices use "
                "surestep.losses.multiclass(); else torch.nn.functional.one_hot(targets, "
                f"{outputs.shape[1]}).float()."
            )
        super().check(first)
        weights = 1 if self.pos_weight is None else self.pos_weight.numel()
        if weights not in (1, outputs.shape[1]):
            raise TaskError(
                f"There are {weights} numbers in pos_weight, and the model has {outputs.shape[1]} "
                "outputs. Give one for each label."
            )
