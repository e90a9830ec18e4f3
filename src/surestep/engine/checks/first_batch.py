"""The first batch: what can be seen in it before a run, each as a clear message."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import (
    DataError,
    OutOfMemoryError,
    SurestepError,
    TaskError,
    suggest_names,
)
from surestep.base.warn import warn
from surestep.engine.batch import MicroBatch, batch_size_of, flatten_tensors, map_tensors
from surestep.engine.checks.activation import OutputActivationTracker
from surestep.engine.checks.additivity import check_additivity
from surestep.engine.checks.batch_norm import watch_norms
from surestep.engine.checks.loss import check_first_loss, checked_loss
from surestep.engine.checks.metric_parts import check_mean
from surestep.engine.checks.model_loss import check_shift
from surestep.engine.checks.shapes import check_shapes
from surestep.engine.checks.terms import FirstBatch
from surestep.engine.data.apply_transform import BatchTransform
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.batch_transforms import MixTransform
from surestep.engine.data.sources import InMemory
from surestep.engine.device import ran_out
from surestep.engine.distributed.errors import is_of_network
from surestep.engine.evaluate.evaluate import eval_mode, metric_weight, positions_of
from surestep.engine.losses.adapt import IGNORED, Loss, loss_targets
from surestep.engine.losses.model_loss import without_targets
from surestep.engine.losses.multi import (
    LossHead,
    error_prefix,
    get_named,
    named_losses,
    split_heads,
)
from surestep.engine.metrics.base import OpenMetric, init_metrics, input_metric_outputs, pop_logged
from surestep.engine.metrics.whole_set import WholeSetMetric
from surestep.engine.model.forward_errors import FAILURES, explain_forward
from surestep.engine.model.preserve import TrainModes, preserve_buffers, preserve_modes
from surestep.engine.rng import ModelRNG, preserve_torch_rng
from surestep.engine.state.average import BATCH_NORM
from surestep.engine.task.task import Task
from surestep.engine.value import Value

# On several ranks each calls the model as often: with fewer samples one could have none to split.
_SAMPLES_OF_RANKS = 4
_SAMPLES = 4  # the fewest that a loss is checked on, where the data has them
_DECLARED = ("other", "model", "in training")  # losses whose denominator is only declared


def check_first_batch(
    model: nn.Module,
    feed: BatchLoader,
    task: Task,
    *,
    autocast: AbstractContextManager[Any],
    fresh: bool = True,
    judged_by: str | None = None,
) -> set[nn.Module]:
    """Try the first batch of the first epoch in eval mode: data, shapes, loss, denominator.

    Returns the BatchNorm layers that see one value per sample and channel.

    Args:
        model: on its device.
        feed: the training data.
        task: for its words.
        autocast: what the forward runs under.
        fresh: the weights are new, so the first loss can be compared with what it should be.
        judged_by: the metric that says which weights are the best, as "set/metric".

    Raises:
        DataError: inputs that are not finite, targets out of range, no items.
        TaskError: outputs, targets and loss do not fit each other.
    """
    _check_ignored(feed, task)
    raw, micro = feed.first()
    _check_finite(micro)
    if feed.loss.kind == "none":
        return set()
    if feed.loss.is_in_training_only:
        with autocast, torch.no_grad(), preserve_torch_rng(feed.device):
            _check_in_training(model, feed, task, raw, micro, judged_by)
        return set()
    randomness = ModelRNG(feed.seed, feed.device)
    with (
        preserve_buffers(model, feed.loss.module),
        eval_mode(model),
        torch.no_grad(),
        preserve_torch_rng(feed.device),
    ):
        randomness.seed_micro_batch(-1, 0)
        _check_counted(feed, micro)
        with autocast:
            with watch_norms(model, micro.samples) as narrow, _hinting_at_batched(model, feed, raw):
                outputs, tried = _try(model, feed.loss, micro, alone=feed.layout.ranks == 1)
            for whole, head, value in _with_enough_samples(model, feed, task, raw, tried):
                with error_prefix(head.name):
                    _check_additivity(model, feed, task, whole, head, value)
            found = _check_metrics(task, model, feed.loss.predictions(outputs), micro, feed)
            _check_judge(task, found, judged_by)
            if feed.transform is not None:
                _check_transformed(model, feed, feed.transform, micro)
        pop_logged()
    for head, value in tried if fresh else ():
        if head.loss.classes is not None and head.loss.divides:
            classes = head.loss.classes(head.outputs)
            check_first_loss(float(value) / head.micro.items, classes, head.name)
    return set() if feed.is_ready else narrow  # the sizes of the others are not known


def _check_in_training(
    model: nn.Module,
    feed: BatchLoader,
    task: Task,
    raw: Any,
    micro: MicroBatch,
    judged_by: str | None,
) -> None:
    """Try the losses in train mode, then predictions and metrics in eval mode.

    What the losses are means over is checked if the Task says it. Such models draw samples in their
    forward, so only a difference of the averages over several draws counts.
    """
    ModelRNG(feed.seed, feed.device).seed_micro_batch(-1, 0)
    alone = feed.layout.ranks == 1
    with preserve_buffers(model), preserve_modes(model.modules()):
        TrainModes(model, tuple(task.keep_eval))
        outputs = _forward(model, micro, alone=alone)
        value = checked_loss(feed.loss, outputs, micro.targets, micro)
        if feed.loss.is_separable and alone:
            for module in model.modules():
                if isinstance(module, BATCH_NORM):  # a part of the batch has other statistics
                    module.eval()
            head = LossHead("", feed.loss, _forward(model, micro, alone=alone), micro)
            _check_additivity(model, feed, task, raw, head, value)
    measured = without_targets(micro)
    with preserve_buffers(model), eval_mode(model):
        outputs = _forward(model, measured, alone=alone)
        found = _check_metrics(task, model, outputs, measured, feed)
        _check_judge(task, found, judged_by)
    pop_logged()


def _check_counted(feed: BatchLoader, micro: MicroBatch) -> None:
    """Warn if `batch_size` seems to count samples of ready-made batches."""
    size = feed.layout.batch_size
    if feed.is_ready and 1 < size == micro.rows:
        warn(
            f"batch_size={size} takes {size} batches of the data for each step, since the data "
            f"comes in batches (Task(batched=True)), and the first one has {size} samples. Leave "
            "batch_size out to take one batch a step.",
        )


@contextmanager
def _hinting_at_batched(model: nn.Module, feed: BatchLoader, raw: Any) -> Iterator[None]:
    """Add to an error about the first batch that its first element fits as a batch, if it does."""
    try:
        yield
    except (TaskError, DataError) as error:
        if isinstance(feed.source, InMemory) or not _fits(model, feed, raw):
            raise
        raise type(error)(
            f"{error} Or, if each element of the data is a batch already, pass Task(batched=True)."
        ) from error


def _fits(model: nn.Module, feed: BatchLoader, raw: Any) -> bool:
    """Return whether model and loss take the first element of a collated batch as a batch."""
    try:
        first = map_tensors(raw, lambda tensor: tensor[0])
        micro = feed.micro_batch(first, 0, batch_size_of(first))
        _try(model, feed.loss, feed.move_micro(micro))
    except (SurestepError, RuntimeError, TypeError, ValueError, IndexError):
        return False
    return True


def _with_enough_samples(
    model: nn.Module, feed: BatchLoader, task: Task, raw: Any, tried: list[tuple[LossHead, Tensor]]
) -> list[tuple[Any, LossHead, Tensor]]:
    """Return (batch as read, head, loss) of some samples that parts can be made of.

    A micro-batch of one sample shows nothing, so with a small one more samples are read. Without
    gradients they need little memory.
    """
    heads = [head for head, _ in tried if head.loss.kind in _DECLARED]
    is_small = any(head.micro.samples < _SAMPLES for head in heads)
    more = feed.first_samples(_SAMPLES) if is_small and task.loss_is_separable else None
    if more is not None and all(more[1].samples > head.micro.samples for head in heads):
        try:
            return [(more[0], *each) for each in _try(model, feed.loss, more[1])[1]]
        except Exception:  # the model takes no other number of samples, or memory ran out
            pass
    return [(raw, *each) for each in tried]


def _check_additivity(
    model: nn.Module, feed: BatchLoader, task: Task, raw: Any, head: LossHead, value: Tensor
) -> None:
    """Check that the loss adds up over its parts, where its denominator is only declared."""
    loss = head.loss
    if not task.loss_is_separable or loss.kind not in _DECLARED:
        return
    counts_batch = not task.counts_targets()
    if loss.kind == "model" and not counts_batch:
        check_shift(model, feed, raw, head.micro, float(value) / head.micro.items)
    size = min(feed.layout.micro_batch_size, feed.layout.batch_size // feed.layout.ranks)
    calls_model = feed.layout.ranks == 1 or size >= _SAMPLES_OF_RANKS
    batch = FirstBatch(model, feed, raw, head, counts_batch)
    check_additivity(batch, calls_model=calls_model)


def _targets(feed: BatchLoader, raw: Any, name: str) -> Any:
    targets = feed.split(raw)[2]
    return get_named(targets, name, "targets") if name else targets


def _check_ignored(feed: BatchLoader, task: Task) -> None:
    """Look for ignored targets that a mean over samples would count."""
    if not isinstance(feed.source, InMemory) or task.inputs is not None:
        return
    for name, loss in named_losses(feed.loss):
        said = task.items.get(name, "samples") if isinstance(task.items, Mapping) else task.items
        if loss.kind != "other" or said != "samples":
            continue
        targets = _targets(feed, feed.source.tensors, name)
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            ignored = int((targets == IGNORED).sum())
            if ignored:
                say = f"items={{{name!r}: 'tokens'}}" if name else "items='tokens'"
                raise TaskError(
                    f"{ignored} targets are {IGNORED}, which means ignored, and the loss "
                    f"{f'{name!r} ' if name else ''}is said to be a mean over samples. Say "
                    f"Task({say}), or a function of the batch."
                )


def _check_transformed(
    model: nn.Module, feed: BatchLoader, transform: BatchTransform, micro: MicroBatch
) -> None:
    """Try the batch as the step will see it."""
    if isinstance(transform.function, MixTransform):
        transform.function.check(feed.loss, micro.targets)
    try:
        whole = feed.batch([micro] * transform.ranks, (0, 0, 0))
        (changed,) = transform(whole, -1).micro_batches
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise TaskError(f"batch_transform fails on the first batch: {error}") from error
    _try(model, feed.loss, changed)


def _try(
    model: nn.Module, loss: Loss, micro: MicroBatch, *, alone: bool = False
) -> tuple[Any, list[tuple[LossHead, Tensor]]]:
    """Return the outputs of a micro-batch, and each loss with its value, checked."""
    watch = OutputActivationTracker()
    looks = any(each.check is not None for _, each in named_losses(loss))
    with watch if looks else nullcontext():
        outputs = _forward(model, micro, alone=alone)
    tried = []
    for head in split_heads(loss, outputs, micro):
        targets = loss_targets(head.loss, head.micro)
        with error_prefix(head.name):
            check_shapes(head.loss, head.outputs, targets, micro, watch)
            tried.append((head, checked_loss(head.loss, head.outputs, targets, head.micro)))
    return outputs, tried


def _forward(model: nn.Module, micro: MicroBatch, *, alone: bool) -> Any:
    try:
        return model(*micro.args, **micro.kwargs)
    except (*FAILURES, MemoryError) as error:
        if is_of_network(error):  # the model waits for other ranks, as FSDP's does
            raise
        shapes = [tuple(t.shape) for t in flatten_tensors((micro.args, dict(micro.kwargs)))]
        if ran_out(error):
            raise OutOfMemoryError(
                f"Memory ran out at the first batch, whose inputs have shapes {shapes}: "
                f"{str(error).partition(chr(10))[0]} Use a smaller micro_batch_size than "
                f"{micro.samples}, which changes no update."
            ) from error
        why = explain_forward(error, model, micro, alone=alone)
        raise TaskError(
            f"The model fails on the first batch, whose inputs have shapes {shapes}: {why}"
        ) from error


def _check_finite(micro: MicroBatch) -> None:
    for what, value in (("inputs", (micro.args, dict(micro.kwargs))), ("targets", micro.targets)):
        for tensor in flatten_tensors(value):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = int((~torch.isfinite(tensor)).sum())
                raise DataError(
                    f"The {what} of the first batch hold {bad} values that are NaN or infinite "
                    f"(shape {tuple(tensor.shape)}). Clean the data; training would fail on them."
                )


def _check_metrics(
    task: Task, model: nn.Module, outputs: Any, micro: MicroBatch, feed: BatchLoader
) -> dict[str, Value]:
    """Try each metric on the first batch: its failure would come at the end of an epoch."""
    found: dict[str, Value] = {}
    for name, metric in task.metrics.items():
        try:
            (opened,) = init_metrics({name: metric}, feed.device)
            seen = input_metric_outputs(opened, model, micro)
            count = metric_weight(feed.loss, micro)
            given = outputs if seen is None else seen
            opened.update(given, micro.targets, count, positions_of(micro))
            found |= _computed(opened)
            if not isinstance(opened, WholeSetMetric) and not feed.loss.is_in_training_only:
                check_mean(name, metric, outputs, micro, feed.loss)
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"metrics[{name!r}] fails on the first batch: {type(error).__name__}: {error}"
            ) from error
        if hasattr(metric, "reset"):
            metric.reset()
    return found


def _computed(opened: OpenMetric) -> dict[str, Value]:
    """Compute a metric of the first batch.

    One of a whole set need not be defined on a batch, which may lack a class: that it fails there
    is a warning, unless the function itself is wrong.
    """
    if not isinstance(opened, WholeSetMetric):
        return opened.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return opened.compute()
        except TaskError as error:
            if isinstance(error.__cause__, (TypeError, AttributeError, NameError)):
                raise
            text = f"{error} So it is on the first training batch; on all of a set it may not be."
    warn(text)
    return {}


def _check_judge(task: Task, found: dict[str, Value], judged_by: str | None) -> None:
    if judged_by is None:
        return
    name = judged_by.split("/")[-1]
    objects = [each for each, metric in task.metrics.items() if hasattr(metric, "compute")]
    of_object = any(name == each or name.startswith(f"{each}_") for each in objects)
    if of_object and name not in found:
        raise TaskError(
            f"validation.metric={judged_by!r} is not what the metric returns. "
            f"{suggest_names(name, found)}"
        )
    if isinstance(found.get(name), list):
        raise TaskError(
            f"validation.metric={judged_by!r} is a table, and which of two tables is better is not "
            "known. Judge by a metric that is one number."
        )
