"""Class weights: said, or balanced by the training data."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from surestep.base.errors import DataError, TaskError

Balanced = Literal["balanced"]


def parse_class_weights(
    value: Balanced | Sequence[float] | Tensor | None, name: str
) -> Tensor | None:
    """Return weights that were said as a tensor; None where there are none yet.

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
        DataError: targets are no class indices, or a class between others has no sample.
    """
    counts = torch.zeros(0, dtype=torch.int64)
    for each in targets:
        if not isinstance(each, Tensor) or each.is_floating_point():
            raise DataError(
                "weight='balanced' counts class indices, and the targets are something else. Say "
                "weight=[...] instead."
            )
        kept = each[each != ignored].flatten().long().cpu()
        if len(kept) and int(kept.min()) < 0:
            raise DataError(f"A target is {int(kept.min())}: class indices start from 0.")
        found = torch.bincount(kept, minlength=len(counts))
        counts = found + torch.nn.functional.pad(counts, (0, len(found) - len(counts)))
    _none_empty(counts, "class", "weight")
    return counts.sum().double() / (len(counts) * counts.double())


def balanced_labels(targets: Iterable[Any], ignored: int | None, *, each: bool) -> Tensor:
    """Return negatives / positives: of each label (dim 1), or of all.

    Raises:
        DataError: a label is never 1.
    """
    positives = negatives = torch.zeros(())
    for batch in targets:
        kept = torch.ones_like(batch, dtype=torch.bool) if ignored is None else batch != ignored
        dims = (0,) if each else tuple(range(batch.dim()))
        yes, no = (batch == 1) & kept, (batch == 0) & kept
        if bool((kept & ~yes & ~no).any()):
            raise DataError(
                "pos_weight='balanced' counts targets that are 0 or 1, and some are neither. Say "
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
            f"{option}='balanced' is not defined for it. Say {option}=[...], a number for each."
        )


def format_weights(weight: Tensor | None) -> str:
    """Return weights for people; of many only the range."""
    values = [] if weight is None else weight.reshape(-1).tolist()
    if len(values) > 10:
        return f"{min(values):.4g} to {max(values):.4g} for {len(values)} classes"
    return ", ".join(f"{value:.4g}" for value in values)
