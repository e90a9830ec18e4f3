"""Start-up checks: what can be seen in one batch before a run, each as a clear message."""

import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from surestep.base.errors import DataError, TaskError
from surestep.engine.data.batch import MicroBatch, samples_in, tensors_in
from surestep.engine.data.feed import Feed
from surestep.engine.data.source import InMemory
from surestep.engine.evaluate import eval_mode
from surestep.engine.loss import IGNORED, Loss
from surestep.engine.metrics import open_metrics, take_logged
from surestep.engine.seed import ModelRandomness, kept_generators
from surestep.engine.task import Task


def check_model(model: nn.Module) -> None:
    """Check that all parameters are on one device.

    Raises:
        TaskError: they are on several.
    """
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise TaskError(
            f"The model's parameters are on several devices: {', '.join(devices)}. Build it on one "
            "and say device= in the Config."
        )


def check_loss(loss: object) -> None:
    """Check that the loss has nothing to train.

    Raises:
        TaskError: it has parameters, which no optimizer would hold and no checkpoint would keep.
    """
    if isinstance(loss, nn.Module):
        names = [name for name, each in loss.named_parameters() if each.requires_grad]
        if names:
            raise TaskError(
                f"The loss has parameters of its own, which nothing would train: "
                f"{', '.join(names)}. Make them a part of the model, and let it return what the "
                "loss needs."
            )


def check_first_batch(
    model: nn.Module,
    feed: Feed,
    task: Task,
    *,
    autocast: AbstractContextManager[Any],
    fresh: bool = True,
) -> None:
    """Try the first batch of the first epoch in eval mode: data, shapes, loss, denominator.

    Args:
        model: on its device.
        feed: the training data.
        task: for its words.
        autocast: what the forward runs under.
        fresh: the weights are new, so the first loss can be compared with what it should be.

    Raises:
        DataError: inputs that are not finite, targets out of range, no items.
        TaskError: outputs, targets and loss do not fit each other.
    """
    _check_ignored(feed, task)
    raw, micro = feed.first()
    _check_finite(micro)
    randomness = ModelRandomness(feed.seed, feed.device)
    with eval_mode(model), torch.no_grad(), kept_generators(feed.device):
        randomness.at(-1, 0)
        with autocast:
            outputs = _forward(model, micro)
            _check_shapes(outputs, micro.targets, feed.loss)
            value = _loss(feed.loss, outputs, micro)
            if not feed.loss.is_sum and task.splits:
                _check_parts(feed, raw, outputs, micro, value)
            _check_metrics(task, outputs, micro, feed)
        take_logged()
    if fresh and feed.loss.kind == "classes" and feed.loss.divides:
        _check_first_loss(float(value) / micro.items, outputs.shape[1])


def _check_ignored(feed: Feed, task: Task) -> None:
    """Look for ignored targets that a mean over samples would count."""
    if feed.loss.kind != "other" or task.items != "samples" or task.inputs is not None:
        return
    if not isinstance(feed.source, InMemory):
        return
    targets = feed.split(feed.source.tensors)[2]
    if isinstance(targets, Tensor) and not targets.is_floating_point():
        ignored = int((targets == IGNORED).sum())
        if ignored:
            raise TaskError(
                f"{ignored} targets are {IGNORED}, which means ignored, and the loss is said to be "
                "a mean over samples. Say Task(items='tokens'), or a function of the batch."
            )


def _forward(model: nn.Module, micro: MicroBatch) -> Any:
    try:
        return model(*micro.args, **micro.kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = [tuple(t.shape) for t in tensors_in((micro.args, dict(micro.kwargs)))]
        raise TaskError(
            f"The model fails on the first batch, whose inputs have shapes {shapes}: {error}"
        ) from error


def _check_finite(micro: MicroBatch) -> None:
    for what, value in (("inputs", (micro.args, dict(micro.kwargs))), ("targets", micro.targets)):
        for tensor in tensors_in(value):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = int((~torch.isfinite(tensor)).sum())
                raise DataError(
                    f"The {what} of the first batch hold {bad} values that are NaN or infinite "
                    f"(shape {tuple(tensor.shape)}). Clean the data; training would fail on them."
                )


def _check_shapes(outputs: Any, targets: Any, loss: Loss) -> None:
    if loss.kind == "other":
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


def _check_metrics(task: Task, outputs: Any, micro: MicroBatch, feed: Feed) -> None:
    """Try each metric on the first batch: its failure would come at the end of an epoch."""
    for name, metric in task.metrics.items():
        try:
            (opened,) = open_metrics({name: metric}, feed.device)
            opened.update(outputs, micro.targets, feed.loss.count(micro.targets))
            opened.compute()
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"metrics[{name!r}] fails on the first batch: {type(error).__name__}: {error}"
            ) from error
        if hasattr(metric, "reset"):
            metric.reset()


class _Broadcast(TorchDispatchMode):
    """Notice an operation of (N, 1) with (N,), which makes N x N of it."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.seen: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(each.shape) for each in args if isinstance(each, Tensor)]
        column, row = (self.samples, 1), (self.samples,)
        if self.samples > 1 and column in shapes and row in shapes:
            self.seen = str(func)
        return func(*args, **(kwargs or {}))


def _loss(loss: Loss, outputs: Any, micro: MicroBatch) -> Tensor:
    """Return the loss of a micro-batch, checked, as a sum over its items."""
    samples = samples_in((micro.targets, micro.args, dict(micro.kwargs)))
    with _Broadcast(samples) as broadcast, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            value = loss.value(outputs, micro.targets)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = [tuple(each.shape) for each in tensors_in((outputs, micro.targets))]
            raise TaskError(
                f"The loss fails on the first batch, whose outputs and targets have shapes "
                f"{shapes}: {error}"
            ) from error
    # torch's own losses broadcast out of a dispatch mode's sight, but warn.
    of_torch = any("Using a target size" in str(each.message) for each in warned)
    if broadcast.seen is not None or of_torch:
        raise TaskError(
            f"In the loss, a tensor of shape ({samples}, 1) meets one of shape ({samples},): each "
            "is compared with each. Use outputs.squeeze(-1) or targets.unsqueeze(-1)."
        )
    for name, part in value.items() if isinstance(value, Mapping) else [("", value)]:
        called = f"The loss part {name!r}" if name else "The loss"
        if not isinstance(part, Tensor):
            raise TaskError(f"{called} is a {type(part).__name__}. Return a tensor, undetached.")
        if part.dim() != 0:
            raise TaskError(
                f"{called} has shape {tuple(part.shape)}, and a step needs one number. Return its "
                "mean: loss.mean()."
            )
    if loss.is_sum:
        assert isinstance(value, Tensor)
        return value
    return loss.add_up(value, micro.items)[0]


def _check_parts(feed: Feed, raw: Any, outputs: Any, micro: MicroBatch, whole: Tensor) -> None:
    """Compare a batch with its two parts: a loss that is a mean over its items adds up."""
    samples = micro.samples
    if samples < 3 or not isinstance(outputs, Tensor) or len(outputs) != samples:
        return
    total = torch.zeros((), dtype=torch.float64, device=whole.device)
    # Uneven parts, because a mean of means is right for even ones.
    for rows in (slice(0, samples // 3), slice(samples // 3, samples)):
        part = _rows(raw, rows)
        if part is raw:  # an object of the user's own, which cannot be cut here
            return
        items = feed.loss.items(part, feed.split(part)[2])
        targets = _rows(micro.targets, rows)
        if items:
            total += feed.loss.add_up(feed.loss.value(outputs[rows], targets), items)[0]
    half = isinstance(outputs, Tensor) and outputs.dtype in (torch.bfloat16, torch.float16)
    if not math.isclose(float(total), float(whole), rel_tol=3e-2 if half else 1e-4, abs_tol=1e-6):
        raise TaskError(
            f"The loss is not a mean over its items: {samples} samples give "
            f"{float(whole) / micro.items:.6g}, and their two parts put together "
            f"{float(total) / micro.items:.6g}. Say what it is a mean over, Task(items='tokens') "
            "or a function of the batch; or Task(splits=False) where it compares samples."
        )


def _rows(value: Any, rows: slice) -> Any:
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, Mapping):
        return {key: _rows(each, rows) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_rows(each, rows) for each in value)
    return value


def _check_first_loss(loss: float, classes: int) -> None:
    """Warn of a first loss far above log(classes), where guessing evenly would start."""
    expected = math.log(classes)
    if loss > 2 * expected + 0.5:
        warnings.warn(
            f"The first loss is {loss:.3g}, and guessing evenly among {classes} classes would give "
            f"{expected:.3g}. Look at the scale of the inputs and the last layer's first weights.",
            stacklevel=2,
        )
