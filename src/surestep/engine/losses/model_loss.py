"""The loss that a model computes itself: it gets a batch of named inputs and returns `.loss`.

Hugging Face models do. Such a loss is a mean, but of what is not declared: of the next tokens that
are not ignored (causal language models, which shift the labels), of the labels that are not
ignored (masked language models, taggers, encoder-decoders, classifiers), or of elements (floating
point labels). The class of the model decides, and the first batch verifies it.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from surestep.base.errors import DataError, TaskError
from surestep.engine.batch import MicroBatch, Split, batch_size_of
from surestep.engine.losses.adapt import IGNORED, Items, Loss, declared_loss

IN_TRAINING = "model in training"  # the value of Task(loss=)
SHIFTING = re.compile("CausalLM|LMHead")


def model_loss(model: nn.Module, items: Items, reduction: str = "mean") -> Loss:
    """Return the loss that a model returns as `.loss`, with its denominator.

    `items="samples"`, the Task's default, lets the class of the model decide; "tokens" are labels
    other than -100, "next tokens" the same without the first of each row.
    """
    shifts = items == "next tokens" or (items == "samples" and is_causal_lm(model))
    count = partial(count_labels, shifts=shifts)

    def count_elements(_: Any, targets: Any) -> int:
        is_floating = isinstance(targets, Tensor) and targets.is_floating_point()
        return targets.numel() if is_floating else count(targets)

    return declared_loss(
        extract_loss,
        items,
        reduction,
        known=dict.fromkeys(("samples", "tokens", "next tokens"), count_elements),
        divides_by="labels that are not ignored",
        count=count,
        kind="model",
        predictions=extract_logits,
        label="the model's own loss",
    )


def count_labels(targets: Any, *, shifts: bool) -> int:
    """Count what a metric is a mean over: labels not ignored, or samples."""
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        return batch_size_of(targets)
    counted = targets[..., 1:] if shifts and targets.dim() > 1 else targets
    return int((counted != IGNORED).sum())


def training_losses(items: Items, reduction: str = "mean") -> Loss:
    """Return the losses of a model that returns a dict of them in train mode, as detectors do.

    In eval mode such a model returns predictions, so an evaluation measures metrics and no loss.
    `items="samples"` leaves open what each loss is a mean over, so that splitting a batch changes
    the numbers; a function of the batch counts it.
    """
    return declared_loss(
        named_losses_of,
        items,
        reduction,
        known={"samples": lambda _, targets: count_listed(targets)},
        divides_by="samples",
        count=count_listed,
        kind="in training",
        label="the losses that the model returns in training",
        is_separable=callable(items) or reduction == "sum",
    )


def count_listed(targets: Any) -> int:
    """Count samples: the targets in a list, or the rows of a tensor."""
    return len(targets) if isinstance(targets, (list, tuple)) else batch_size_of(targets)


def named_losses_of(outputs: Any, _: Any = None) -> Mapping[str, Tensor]:
    """Return the losses that a model returned in train mode."""
    if isinstance(outputs, Mapping) and outputs:
        return outputs
    what = "an empty dict" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
    raise TaskError(
        f"loss={IN_TRAINING!r} takes the dict of losses that model(inputs, targets) returns in "
        f'train mode, and it returned {what}. Return a dict, or use loss="model" for a model that '
        "returns .loss."
    )


def inputs_with_targets(split: Split, batch: Any) -> tuple[Any, Any]:
    """Return (inputs, targets) of a training batch, with the targets also as the last input.

    If inputs have names, theirs is "targets".
    """
    args, kwargs, targets = split(batch)
    return ({**kwargs, "targets": targets} if kwargs else (*args, targets)), targets


def without_targets(micro: MicroBatch) -> MicroBatch:
    """Return a micro-batch of `inputs_with_targets` as an evaluation has it."""
    if micro.kwargs:
        inputs = {name: value for name, value in micro.kwargs.items() if name != "targets"}
        return micro._replace(kwargs=inputs)
    return micro._replace(args=micro.args[:-1])


def is_causal_lm(model: nn.Module) -> bool:
    """Return whether the class of a model predicts the label to the right.

    The model inside a wrapper decides. Encoder-decoders shift the inputs of the decoder instead.
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
    """Return the loss in what a model returned."""
    is_named = isinstance(outputs, Mapping)
    loss = outputs.get("loss") if is_named else getattr(outputs, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    what, fix = "no loss", "Give batches with the labels it takes (labels=...)."
    if not is_named and not hasattr(outputs, "loss"):
        what = f"a {type(outputs).__name__}"
        fix = "Return an object with .loss (return_dict=True), or pass a different Task(loss=...)."
    raise TaskError(
        f'loss="model" takes the loss that the model computes itself, and it returned {what}. {fix}'
    )


def extract_logits(outputs: Any) -> Any:
    """Return what metrics get of what a model returned: its logits, or all if it has none."""
    is_named = isinstance(outputs, Mapping)
    logits = outputs.get("logits") if is_named else getattr(outputs, "logits", None)
    return outputs if logits is None else logits


def batch_as_kwargs(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any], Any]:
    """Return a batch as (args, kwargs, targets): all of it are inputs, its labels the targets.

    Several kinds of labels are a dict; without labels, the full batch is the targets.
    """
    if not isinstance(batch, Mapping):
        raise DataError(
            f'With loss="model" a batch goes into the model by name, and this one is a '
            f"{type(batch).__name__}. Give a dataset of dicts, such as {{'input_ids': ..., "
            "'labels': ...}}, or set Task(inputs=lambda batch: ({'pixel_values': batch[0], "
            "'labels': batch[1]}, batch[1])). A model that returns a dict of losses in train mode "
            f"takes loss={IN_TRAINING!r}."
        )
    if "labels" in batch:
        return (), batch, batch["labels"]
    named = {key: batch[key] for key in batch if "label" in key or key.endswith("_positions")}
    return (), batch, next(iter(named.values())) if len(named) == 1 else named or batch
