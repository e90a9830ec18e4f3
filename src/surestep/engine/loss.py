"""A loss as (sum, items): what a step adds up, and what it divides by once.

People write losses that return a mean. A mean over a micro-batch cannot be put together with
another one unless it is known what it is a mean over, so each loss is turned into a sum with its
true denominator: unmasked targets, the sum of their class weights, elements, or samples.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from surestep.base.errors import DataError, TaskError
from surestep.engine.data.batch import samples_in

LossFunction = Callable[..., Tensor | Mapping[str, Tensor]]
IGNORED = -100

_ELEMENTWISE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.SoftMarginLoss,
)
_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_MODULES: dict[Any, Callable[[], nn.Module]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.nll_loss: nn.NLLLoss,
    functional.mse_loss: nn.MSELoss,
    functional.l1_loss: nn.L1Loss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.huber_loss: nn.HuberLoss,
    functional.binary_cross_entropy: nn.BCELoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
}


def _as_they_are(outputs: Any) -> Any:
    return outputs


@dataclass(frozen=True)
class Loss:
    """A loss with its denominator.

    Attributes:
        value: `value(outputs, targets)`: a sum over items where `is_sum`, else a mean.
        items: what the mean is over, of one batch: `items(batch, targets)`.
        count: what a metric's mean is over: samples, or targets that are not ignored.
        kind: what the start-up checks may expect of outputs and targets.
        divides: False for a loss that its user declared a sum: nothing is divided.
        predictions: what metrics see of the model's outputs.
    """

    value: LossFunction
    is_sum: bool
    items: Callable[[Any, Any], float]
    count: Callable[[Any], int]
    kind: Literal["classes", "elementwise", "other", "model", "none"]
    divides: bool = True
    predictions: Callable[[Any], Any] = _as_they_are

    def add_up(
        self, value: Tensor | Mapping[str, Tensor], items: float
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Turn what the callable returned into a sum over `items`, and its named parts likewise.

        A loss that returns a mapping of named parts is their sum.
        """
        scale = 1.0 if self.is_sum else items
        if isinstance(value, Tensor):
            return _at_least_fp32(value) * scale, {}
        parts = {name: _at_least_fp32(part) * scale for name, part in value.items()}
        return cast(Tensor, sum(parts.values())), parts


def _at_least_fp32(value: Tensor) -> Tensor:
    """Return a half-precision mean as fp32: a sum over many items needs the digits."""
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


def as_loss(loss: LossFunction, items: str | Callable[[Any], float]) -> Loss:
    """Turn what the user gave into a Loss.

    Args:
        loss: a torch loss module or function, or any callable that returns a mean.
        items: of a callable that is not torch's: "samples", "tokens" or a function of the batch.

    Raises:
        TaskError: `reduction="none"`, or words for `items` that are not known.
    """
    known = _MODULES.get(loss, lambda: loss)()
    if isinstance(known, nn.Module) and type(known) in (*_ELEMENTWISE, *_CLASSES, nn.KLDivLoss):
        if items != "samples":
            raise TaskError(
                f"items={items!r} is said, but {type(known).__name__} brings its own denominator. "
                "Leave items out, or wrap the loss in a function that returns a mean."
            )
        return _of_module(known)
    return Loss(
        loss,
        is_sum=False,
        items=_items_of_callable(items),
        count=_unmasked if items == "tokens" else _samples,
        kind="other",
    )


def no_loss(items: str | Callable[[Any], float]) -> Loss:
    """Return what counts the items of a Task whose step has its own losses.

    Args:
        items: "samples", or a function of the batch.

    Raises:
        TaskError: other words.
    """
    if isinstance(items, str) and items != "samples":
        raise TaskError(
            f"items={items!r} takes targets, and a Task without a loss has none. Use 'samples' or "
            "a function of the batch."
        )
    return Loss(
        _not_there,
        is_sum=False,
        items=(lambda batch, _: _samples(batch)) if isinstance(items, str) else _counted(items),
        count=_samples,
        kind="none",
    )


def _not_there(outputs: Any, targets: Any) -> Tensor:
    raise AssertionError("evaluations and checks ask for the kind before")


def _counted(count: Callable[[Any], float]) -> Callable[[Any, Any], float]:
    return lambda batch, _: float(count(batch))


def _of_module(module: nn.Module) -> Loss:
    name, reduction = type(module).__name__, str(module.reduction)
    if reduction == "none":
        raise TaskError(
            f"{name}(reduction='none') returns a loss for each element, and a step needs one "
            f"number. Use {name}() and let surestep divide."
        )
    summing: Any = copy.copy(module)
    summing.reduction = "sum"
    divides = reduction != "sum"
    if isinstance(module, _CLASSES):
        weight = module.weight if isinstance(module.weight, Tensor) else None
        items = _class_items(weight, int(module.ignore_index))
        count = _class_count(int(module.ignore_index))
        return Loss(summing, True, items, count, "classes", divides)
    per_sample = isinstance(module, nn.KLDivLoss) and reduction == "batchmean"
    return Loss(
        summing, True, _sample_items if per_sample else _elements, _samples, "elementwise", divides
    )


def _class_items(weight: Tensor | None, ignored: int) -> Callable[[Any, Any], float]:
    """Count targets that are not ignored, by their class weights; probabilities count as one.

    That torch divides by the number of samples where targets are probabilities, whatever the
    weights, is what torch.nn.CrossEntropyLoss does and documents.
    """

    def items(_: Any, targets: Tensor) -> float:
        if targets.is_floating_point():
            return targets.numel() // (targets.shape[1] if targets.dim() > 1 else targets.shape[0])
        kept = targets != ignored
        if weight is None:
            return int(kept.sum())
        try:
            return float(weight.to(targets.device)[targets[kept]].double().sum())
        except IndexError as error:
            raise DataError(
                f"A target is no class index: there are {len(weight)} class weights, and the "
                f"targets run from {int(targets[kept].min())} to {int(targets[kept].max())}."
            ) from error

    return items


def _class_count(ignored: int) -> Callable[[Any], int]:
    def count(targets: Tensor) -> int:
        if targets.is_floating_point():
            return targets.shape[0]
        return int((targets != ignored).sum())

    return count


def _items_of_callable(items: str | Callable[[Any], float]) -> Callable[[Any, Any], float]:
    if items == "samples":
        return _sample_items
    if items == "tokens":
        return lambda _, targets: _unmasked(targets)
    if isinstance(items, str):
        raise TaskError(
            f"items={items!r} is not known. Use 'samples', 'tokens' or a function of the batch."
        )
    return _counted(items)


def _sample_items(_: Any, targets: Any) -> int:
    return _samples(targets)


def _elements(_: Any, targets: Tensor) -> int:
    return targets.numel()


def _unmasked(targets: Tensor) -> int:
    return int((targets != IGNORED).sum())


def _samples(targets: Any) -> int:
    return samples_in(targets)
