"""The loss that a model computes itself: a batch of named inputs goes in whole, `.loss` comes out.

So it is with Hugging Face models. Such a loss is a mean, and of what, the model does not say: over
the next tokens that are not ignored (causal language models, which shift the labels), over the
labels that are not ignored (masked language models, taggers, encoder-decoders, classifiers), or
over elements (labels that are floating point numbers). It is told by the kind of the model, and
proven on the first batch.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from surestep.base.errors import DataError, TaskError
from surestep.engine.batch import MicroBatch, Split, batch_size_of
from surestep.engine.losses.adapt import IGNORED, Loss, check_reduction

IN_TRAINING = "model in training"  # the value of Task(loss=)
SHIFTING = re.compile("CausalLM|LMHead")
_NOT_THE_MODELS = (
    'loss="model" takes the loss that the model computes itself, and it returned {what}. {mend}'
)


def model_loss(
    model: nn.Module, items: str | Callable[[Any], float], reduction: str = "mean"
) -> Loss:
    """Return the model's own loss with its denominator.

    Args:
        model: which returns something with `.loss`.
        items: "samples", the Task's default, leaves it to the kind of the model; "tokens" are
            labels other than -100, "next tokens" the same without the first of each row; or a
            function of the batch.
        reduction: "mean" over its items, or "sum", which nothing divides.

    Raises:
        TaskError: words that are not known.
    """
    check_reduction(reduction)
    if isinstance(items, str) and items not in ("samples", "tokens", "next tokens"):
        raise TaskError(
            f"items={items!r} is not known. Leave it out, or say 'tokens', 'next tokens' or a "
            "function of the batch."
        )
    labels = LabelCounter(items == "next tokens" or (items == "samples" and is_causal_lm(model)))
    return Loss(
        extract_loss,
        is_sum=reduction == "sum",
        divides=reduction != "sum",
        items=_function(items) if callable(items) else labels.items,
        count=labels.count,
        kind="model",
        predictions=extract_logits,
        label="the model's own loss",
        divides_by=_divisor(items, reduction),
    )


def _divisor(items: str | Callable[[Any], float], reduction: str) -> str:
    if reduction == "sum":
        return "nothing"
    return "what items() counts" if callable(items) else "labels that are not ignored"


def _function(count: Callable[[Any], float]) -> Callable[[Any, Any], float]:
    return lambda batch, _: float(count(batch))


def training_losses(items: str | Callable[[Any], float], reduction: str = "mean") -> Loss:
    """Return the losses of a model that returns a dict of them in train mode, as detectors do.

    In eval mode such a model returns predictions, so an evaluation measures metrics and no loss.

    Args:
        items: "samples", which says nothing about what each loss is a mean over, so that cutting a
            batch changes the numbers; or a function of the batch, what they are means over.
        reduction: "mean" over its items, or "sum", which nothing divides.

    Raises:
        TaskError: unknown words.
    """
    check_reduction(reduction)
    if isinstance(items, str) and items != "samples":
        raise TaskError(
            f"items={items!r} does not fit loss={IN_TRAINING!r}. Leave it out, or give a function "
            "of the batch."
        )
    return Loss(
        named_losses_of,
        is_sum=reduction == "sum",
        divides=reduction != "sum",
        items=_function(items) if callable(items) else lambda _, targets: count_listed(targets),
        count=count_listed,
        kind="in training",
        label="the losses that the model returns in training",
        divides_by=_divisor(items, reduction) if callable(items) else "samples",
        is_separable=callable(items) or reduction == "sum",
    )


def count_listed(targets: Any) -> int:
    """Count samples: the targets in a list, or the rows of a tensor."""
    return len(targets) if isinstance(targets, (list, tuple)) else batch_size_of(targets)


def named_losses_of(outputs: Any, _: Any = None) -> Mapping[str, Tensor]:
    """Return the losses that a model returned in train mode.

    Raises:
        TaskError: it did not return a dict of them.
    """
    if isinstance(outputs, Mapping) and outputs:
        return outputs
    what = "an empty dict" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
    raise TaskError(
        f"loss={IN_TRAINING!r} takes the dict of losses that model(inputs, targets) returns in "
        f'train mode, and it returned {what}. Return a dict, or use loss="model" for a model that '
        "returns .loss."
    )


def inputs_with_targets(split: Split, batch: Any) -> tuple[Any, Any]:
    """Return (inputs, targets) of a batch with the targets among the inputs too, as the last one.

    By name they are "targets".

    Args:
        split: tells inputs from targets.
        batch: of training data.
    """
    args, kwargs, targets = split(batch)
    return ({**kwargs, "targets": targets} if kwargs else (*args, targets)), targets


def without_targets(micro: MicroBatch) -> MicroBatch:
    """Return a micro-batch of `inputs_with_targets` as an evaluation has it."""
    if micro.kwargs:
        named = {name: each for name, each in micro.kwargs.items() if name != "targets"}
        return micro._replace(kwargs=named)
    return micro._replace(args=micro.args[:-1])


class LabelCounter:
    """Labels, counted as a model's own loss counts them."""

    def __init__(self, shifts: bool) -> None:
        self.shifts = shifts

    def items(self, _: Any, targets: Any) -> int:
        """Count what the loss is a mean over: labels not ignored, or elements, or samples."""
        if not isinstance(targets, Tensor):
            return batch_size_of(targets)
        return targets.numel() if targets.is_floating_point() else self._unmasked(targets)

    def count(self, targets: Any) -> int:
        """Count what a metric is a mean over: labels not ignored, or samples."""
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            return batch_size_of(targets)
        return self._unmasked(targets)

    def _unmasked(self, labels: Tensor) -> int:
        counted = labels[..., 1:] if self.shifts and labels.dim() > 1 else labels
        return int((counted != IGNORED).sum())


def is_causal_lm(model: nn.Module) -> bool:
    """Say whether a model predicts the label to the right, by its kind.

    Wrappers are seen through. Encoder-decoders shift what goes into the decoder instead.
    """
    while True:
        inner: Any = getattr(model, "_orig_mod", None)
        if inner is None and hasattr(model, "get_base_model"):  # peft's
            inner = model.get_base_model()  # type: ignore[operator]
        if inner is None or inner is model:
            break
        model = inner
    if bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False)):
        return False
    kind = type(model).__name__
    return bool(SHIFTING.search(kind)) or "ForConditionalGeneration" in kind


def extract_loss(outputs: Any, _: Any = None) -> Tensor:
    """Return the loss in what a model returned.

    Raises:
        TaskError: there is none.
    """
    named = isinstance(outputs, Mapping)
    loss = outputs.get("loss") if named else getattr(outputs, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    if named or hasattr(outputs, "loss"):
        mend = "Give batches with the labels it takes (labels=...)."
        raise TaskError(_NOT_THE_MODELS.format(what="no loss", mend=mend))
    mend = "Return an object with .loss (return_dict=True), or say Task(loss=...) otherwise."
    raise TaskError(_NOT_THE_MODELS.format(what=f"a {type(outputs).__name__}", mend=mend))


def extract_logits(outputs: Any) -> Any:
    """Return what metrics see of what a model returned: its logits, or all where it has none."""
    named = isinstance(outputs, Mapping)
    logits = outputs.get("logits") if named else getattr(outputs, "logits", None)
    return outputs if logits is None else logits


def batch_as_kwargs(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """Return a batch as (args, kwargs, targets): all of it goes in, and its labels are the targets.

    Several kinds of labels are a dict; where there are none, the whole batch is.

    Raises:
        DataError: not a dict.
    """
    if not isinstance(batch, Mapping):
        raise DataError(
            f'With loss="model" a batch goes into the model by name, and this one is a '
            f"{type(batch).__name__}. Give a dataset of dicts, such as {{'input_ids': ..., "
            "'labels': ...}}, or say Task(inputs=lambda batch: ({'pixel_values': batch[0], "
            "'labels': batch[1]}, batch[1])). A model that returns a dict of losses in train mode "
            f"takes loss={IN_TRAINING!r}."
        )
    if "labels" in batch:
        return (), batch, batch["labels"]
    named = {key: batch[key] for key in batch if "label" in key or key.endswith("_positions")}
    return (), batch, next(iter(named.values())) if len(named) == 1 else named or batch
