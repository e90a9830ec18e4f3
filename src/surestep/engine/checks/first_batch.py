"""Checks of the first batch: data, shapes, loss, denominator and metrics, before a run."""

import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
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
from surestep.engine.batch import (
    MicroBatch,
    batch_size_of,
    describe_shapes,
    flatten_tensors,
    map_tensors,
)
from surestep.engine.checks.additivity import check_additivity
from surestep.engine.checks.attribute_calls import make_calls
from surestep.engine.checks.batch_norm import watch_norms
from surestep.engine.checks.draws_by_sample import DrawsBySample
from surestep.engine.checks.loss import (
    OutputActivationTracker,
    check_first_loss,
    compute_checked_loss,
)
from surestep.engine.checks.measured_batch import (
    LossCalls,
    MeasuredBatch,
    UnmeasurableError,
    measuring,
)
from surestep.engine.checks.metric_parts import check_mean
from surestep.engine.checks.model_loss import check_shift
from surestep.engine.checks.model_signature import describe_model_io
from surestep.engine.checks.nonfinite import replace_nonfinite
from surestep.engine.checks.padding import check_padded_items
from surestep.engine.checks.rows import takes_rows
from surestep.engine.data.apply_transform import BatchTransform
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.batch_transforms import MixTransform
from surestep.engine.data.columns import may_be_columns, warn_of_columns
from surestep.engine.data.sources import InMemory
from surestep.engine.device import ran_out, suggest_micro_batch
from surestep.engine.distributed.hang_monitor import is_network_error
from surestep.engine.evaluate.evaluate import eval_mode, metric_weight, positions_of
from surestep.engine.losses.adapt import IGNORED
from surestep.engine.losses.base import FirstBatch
from surestep.engine.losses.model_loss import without_targets
from surestep.engine.losses.multi import (
    LossHead,
    code_of_losses,
    error_prefix,
    get_named,
    named_losses,
    split_heads,
)
from surestep.engine.metrics.base import (
    OpenMetric,
    find_object,
    init_metrics,
    input_metric_outputs,
    names_of_objects,
    pop_logged,
)
from surestep.engine.metrics.copies import copy_metric
from surestep.engine.metrics.whole_set import WholeSetMetric, metric_error
from surestep.engine.model.attribute_writes import AttributeWrites, Call
from surestep.engine.model.forward_errors import FAILURES, explain_forward, nesting_hint
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.modes import TrainModes, preserve_modes
from surestep.engine.own_generators import own_generators
from surestep.engine.plan.not_checked import not_checked
from surestep.engine.rng import ModelRNG, preserve_torch_rng, states_of_all
from surestep.engine.state.average import BATCH_NORM
from surestep.engine.task.task import Task
from surestep.engine.value import Value

# On several ranks each calls the model as often: with fewer samples one could have none to split.
_SAMPLES_OF_RANKS = 4
_SAMPLES = 4  # the fewest that a loss is checked on, if the data has them
_DECLARED = ("other", "model", "in training")  # losses whose denominator is only declared


@dataclass(frozen=True)
class FirstBatchResult:
    """What the first batch shows of a model.

    Attributes:
        writes: the parameters that its forward changes.
        narrow_norms: the BatchNorm layers that see one value per sample and channel.
        signature: what the model takes and returns; None if it was not called.
        attributes: those that a step changes.
        calls: show on which of them outputs depend; empty if that is not possible.
    """

    writes: ForwardWrites
    attributes: AttributeWrites
    narrow_norms: set[nn.Module] = field(default_factory=set)
    signature: dict[str, Any] | None = None
    calls: Sequence[Call] = ()


def check_first_batch(
    model: nn.Module,
    loader: BatchLoader,
    task: Task,
    autocast: AbstractContextManager[Any],
    *,
    fresh: bool = True,
    judged_by: str | None = None,
    skips: bool = False,
) -> FirstBatchResult:
    """Try the first batch of the first epoch in eval mode.

    Args:
        model: on its device.
        loader: the training data.
        task: for its declarations and metrics.
        autocast: what the forward runs under.
        fresh: the weights are new, so the first loss can be compared with what it should be.
        judged_by: the metric that decides which weights are the best, as "set/metric".
        skips: the run skips steps that are not finite, so the first batch may be one.
    """
    _check_ignored(loader, task)
    read, micro = loader.first()
    raw, micro = replace_nonfinite(loader, read, micro, skips=skips)
    writes = ForwardWrites(model, loader.loss.module, loader.loss.teacher)
    functions = {"batch_transform": task.batch_transform, "step": task.step}
    used = {name: function for name, function in functions.items() if function is not None}
    attributes = AttributeWrites({"model": model, **code_of_losses(loader.loss), **used})
    if loader.loss.kind == "none":
        return FirstBatchResult(writes, attributes)
    before = attributes.snapshot()
    checks = _Checks(model, loader, task, raw, judged_by, writes, is_read=raw is read)
    calls = make_calls(checks, micro)
    if loader.loss.is_in_training_only:
        with autocast, torch.no_grad(), preserve_torch_rng(loader.device):
            signature = checks.run_in_training(micro)
            attributes.find(before, calls)
        return FirstBatchResult(writes, attributes, signature=signature, calls=calls)
    with (
        preserve_buffers(model, loader.loss.module),
        eval_mode(model),
        writes.compare(),
        torch.no_grad(),
        preserve_torch_rng(loader.device),
    ):
        ModelRNG(loader.seed, loader.device).seed_for("trial", 0)
        _warn_of_batch_count(loader, micro)
        with autocast:
            narrow, tried, signature = checks.run(micro)
            attributes.find(before, calls)
        pop_logged()
    for head, value in tried if fresh else ():
        class_dim = head.loss.find_class_dim(head.outputs)
        if class_dim is not None and head.loss.divides:
            classes = head.outputs.shape[class_dim]
            check_first_loss(float(value) / head.micro_batch.items, classes, head.name)
    # Of ready batches, the sizes of the others are not known.
    narrow = set() if loader.is_ready else narrow
    return FirstBatchResult(writes, attributes, narrow, signature, calls)


@dataclass(frozen=True)
class _Checks:
    """Checks that call the model, in a context that restores what they change."""

    model: nn.Module
    loader: BatchLoader
    task: Task
    raw: Any
    judged_by: str | None
    writes: ForwardWrites
    is_read: bool  # the batch is as the data has it

    @property
    def is_alone(self) -> bool:
        """Whether no other rank has to call the model as often."""
        return self.loader.layout.ranks == 1

    def run(
        self, micro: MicroBatch
    ) -> tuple[set[nn.Module], list[tuple[LossHead, Tensor]], dict[str, Any]]:
        """Return narrow BatchNorm layers, each loss with its value, and the model's signature."""
        watched, before = watch_norms(self.model, micro.samples), states_of_all(self.loader.device)
        with watched as narrow, self._hint_at_batched(), self.writes:
            outputs, tried = self.forward_and_loss(micro)
        draws = self._find_draws(before)
        is_read = not self.loader.source.collates and may_be_columns(self.task.train)
        if is_read and takes_rows(self.model, micro, outputs):  # so that rows would train too
            warn_of_columns(self.task.train)
        signature = describe_model_io(self.model, micro, outputs)
        totals = {head.name: total for head, total in tried}
        for raw, head in self._with_enough_samples([head for head, _ in tried]):
            with error_prefix(head.name):
                self._check_additivity(raw, head, draws, totals.get(head.name))
        self._check_metrics(self.loader.loss.predictions(outputs), micro)
        if self.loader.transform is not None:
            self._check_transformed(self.loader.transform, micro)
        return narrow, tried, signature

    def run_in_training(self, micro: MicroBatch) -> dict[str, Any]:
        """Try losses in train mode, then predictions and metrics in eval mode.

        Returns the signature of the model in eval mode.

        """
        model, loss = self.model, self.loader.loss
        ModelRNG(self.loader.seed, self.loader.device).seed_for("trial", 0)
        before = states_of_all(self.loader.device)
        with preserve_buffers(model), preserve_modes(model.modules()):
            TrainModes(model, tuple(self.task.keep_eval))
            with self.writes.compare(), self.writes:
                outputs = self.forward(micro)
            compute_checked_loss(loss, outputs, micro.targets, micro)
            draws = self._find_draws(before)
            if not loss.is_separable:
                not_checked("loss", "Task(items=) does not count what its mean is over")
            else:
                for module in model.modules():
                    if isinstance(module, BATCH_NORM):  # a part of the batch has other statistics
                        module.eval()
                head = LossHead("", loss, None, micro)  # parts may be enough
                self._check_additivity(self.raw, head, draws)
        measured = without_targets(micro)
        with preserve_buffers(model), eval_mode(model), self.writes.compare():
            outputs = self.forward(measured)
            self._check_metrics(outputs, measured)
        pop_logged()
        return describe_model_io(self.model, measured, outputs)

    def forward(self, micro: MicroBatch) -> Any:
        """Return the outputs of the model."""
        try:
            return self.model(*micro.args, **micro.kwargs)
        except (*FAILURES, MemoryError, AttributeError) as error:
            is_of_model = isinstance(error, AttributeError) and not nesting_hint(micro.args)
            if is_of_model or is_network_error(error):  # it waits for other ranks, as FSDP's does
                raise
            shapes = describe_shapes((micro.args, dict(micro.kwargs)))
            if ran_out(error):
                raise OutOfMemoryError(
                    f"Memory ran out at the first batch, whose inputs have shapes {shapes}: "
                    f"{str(error).partition(chr(10))[0]} {suggest_micro_batch(micro.samples)}"
                ) from error
            why = explain_forward(error, self.model, micro)
            raise TaskError(
                f"The model fails on the first batch, whose inputs have shapes {shapes}: {why}"
            ) from error

    def forward_and_loss(self, micro: MicroBatch) -> tuple[Any, list[tuple[LossHead, Tensor]]]:
        """Return the outputs of a micro-batch, and each loss with its value, checked."""
        tracker, loss = OutputActivationTracker(), self.loader.loss
        is_needed = any(entry.check is not None for _, entry in named_losses(loss))
        with tracker if is_needed else nullcontext():
            outputs = self.forward(micro)
        tried = []
        inputs = tuple(flatten_tensors((micro.args, dict(micro.kwargs))))
        for head in split_heads(loss, outputs, micro):
            targets = head.loss.targets_of(head.micro_batch)
            with error_prefix(head.name):
                if head.loss.check is not None:
                    squashed = tracker.activation_of(head.outputs)
                    head.loss.check(FirstBatch(head.outputs, targets, inputs, squashed))
                value = compute_checked_loss(head.loss, head.outputs, targets, head.micro_batch)
                tried.append((head, value))
        return outputs, tried

    @contextmanager
    def _hint_at_batched(self) -> Iterator[None]:
        """Add to an error that the first element of the batch fits as a batch, if it does."""
        try:
            yield
        except (TaskError, DataError) as error:
            if isinstance(self.loader.source, InMemory) or not self._takes_first_element():
                raise
            raise type(error)(
                f"{error} Or, if each element of the data is a batch already, pass "
                "Task(batched=True)."
            ) from error

    def _takes_first_element(self) -> bool:
        try:
            first = map_tensors(self.raw, lambda tensor: tensor[0])
            micro = self.loader.micro_batch(first, 0, batch_size_of(first))
            self.forward_and_loss(self.loader.move_micro(micro))
        except (SurestepError, RuntimeError, TypeError, ValueError, IndexError):
            return False
        return True

    def _with_enough_samples(self, heads: list[LossHead]) -> list[tuple[Any, LossHead]]:
        """Return batches as read, with outputs for enough samples to make parts of.

        A micro-batch of one sample shows nothing, so with a small one more samples are read.
        Without gradients they need little memory.
        """
        declared = [head for head in heads if head.loss.kind in _DECLARED]
        is_small = any(head.micro_batch.samples < _SAMPLES for head in declared)
        needs_more = is_small and self.task.loss_is_separable
        more = self.loader.first_samples(_SAMPLES) if needs_more else None
        if more is not None and all(more[1].samples > one.micro_batch.samples for one in declared):
            raw, micro = more
            try:
                with measuring():
                    outputs = self.model(*micro.args, **micro.kwargs)
                    return [(raw, head) for head in split_heads(self.loader.loss, outputs, micro)]
            except UnmeasurableError:  # the model takes no other number of samples
                pass
        return [(self.raw, head) for head in heads]

    def _find_draws(self, before: Hashable) -> DrawsBySample | None:
        """Return what calls the model and the loss if they draw random numbers.

        `before` are the states of the generators before the first calls.
        """
        loader = self.loader
        if not any(loss.kind in _DECLARED for _, loss in named_losses(loader.loss)):
            return None
        owned = own_generators(self.model, code_of_losses(loader.loss)).found
        draws = bool(owned) or states_of_all(loader.device) != before
        return DrawsBySample(loader.seed, loader.device) if draws else None

    def _check_additivity(
        self,
        raw: Any,
        head: LossHead,
        draws: DrawsBySample | None,
        total: Tensor | None = None,
    ) -> None:
        """Check that the loss adds up over its parts, if its denominator is only declared.

        `total` is the loss of the batch of this rank, summed over its items.
        """
        loss, loader = head.loss, self.loader
        counts_batch = not self.task.counts_targets()
        is_read = raw is not self.raw or self.is_read
        calls = LossCalls(
            of_model=loss.kind != "other",
            made=1 if loader.transform is None else 2,
            are_limited=loss.kind == "other" or draws is not None,
            draws=draws,
        )
        batch = MeasuredBatch(
            *(self.model, loader, raw, head, counts_batch, is_read),
            total=total if raw is self.raw else None,
            calls=calls,
        )
        layout = loader.layout
        size = min(layout.micro_batch_size, layout.batch_size // layout.ranks)
        if loss.kind not in _DECLARED:
            if loader.source.collates:
                check_padded_items(replace(batch, collates=True))
        elif counts_batch and loader.is_ready and head.micro_batch.collated is None:
            not_checked(batch.what, "the batches do not show which dimension has the samples")
        elif self.task.loss_is_separable:
            if loss.kind == "model" and not counts_batch:
                check_shift(batch)
            check_additivity(batch, calls_model=self.is_alone or size >= _SAMPLES_OF_RANKS)
        else:
            not_checked(batch.what, "loss_is_separable=False says that its parts may differ")

    def _check_transformed(self, transform: BatchTransform, micro: MicroBatch) -> None:
        """Try the batch as the step will get it."""
        if isinstance(transform.function, MixTransform):
            transform.function.check(self.loader.loss, micro.targets)
        try:
            changed = self.transformed(transform, micro)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise TaskError(f"batch_transform fails on the first batch: {error}") from error
        self.forward_and_loss(changed)

    def transformed(self, transform: BatchTransform, micro: MicroBatch) -> MicroBatch:
        """Return a micro-batch as the step will get it."""
        batch = self.loader.batch([micro] * transform.ranks, (0, 0, 0))
        return transform(batch, -1).micro_batches[0]

    def _check_metrics(self, outputs: Any, micro: MicroBatch) -> None:
        """Try each metric: its failure would come at the end of an epoch.

        Objects are copied, since some keep more than `reset` resets.
        """
        found: dict[str, Value] = {}
        for name, original in self.task.metrics.items():
            given, metric = outputs, copy_metric(original)
            try:
                (opened,) = init_metrics({name: metric}, self.loader.device)
                seen = input_metric_outputs(opened, self.model, micro)
                count = metric_weight(self.loader.loss, micro)
                if seen is not None:
                    given = seen
                opened.update(given, micro.targets, count, positions_of(micro))
                found |= _compute_metric(opened)
                if not isinstance(opened, WholeSetMetric):
                    check_mean(name, metric, outputs, micro, self.loader.loss)
            except TaskError:
                raise
            except Exception as error:
                raise metric_error(
                    name, "on the first batch", error, given, micro.targets
                ) from error
            if hasattr(metric, "reset"):
                metric.reset()
        if self.judged_by is not None:
            _check_monitor(self.task, found, self.judged_by)


def _compute_metric(opened: OpenMetric) -> dict[str, Value]:
    """Compute a metric of the first batch.

    A metric of a whole set need not be defined on a batch, which may lack a class: if it fails
    there that is a warning, unless the function itself is wrong.
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
            text = f"{error} It fails on the first training batch; on a full set it may not."
    warn(text)
    return {}


def _check_monitor(task: Task, found: dict[str, Value], judged_by: str) -> None:
    """Check that the monitored metric is a number which its object returns."""
    name = judged_by.split("/")[-1]
    objects = names_of_objects(task.metrics)
    own = name if name in objects else find_object(name, objects)
    # A metric of a whole set may not be defined on this batch.
    is_computed = any(own in (key, find_object(key, [str(own)])) for key in found)
    if own is not None and is_computed and name not in found:
        raise TaskError(
            f"validation.metric={judged_by!r} is not what the metric returns. "
            f"{suggest_names(name, found)}"
        )
    if isinstance(found.get(name), list):
        raise TaskError(
            f"validation.metric={judged_by!r} is a table, and which of two tables is better is not "
            "known. Use a metric that is one number."
        )


def _warn_of_batch_count(loader: BatchLoader, micro: MicroBatch) -> None:
    """Warn if `batch_size` seems to count samples of ready-made batches."""
    size = loader.layout.batch_size
    if loader.is_ready and 1 < size == micro.rows:
        warn(
            f"batch_size={size} takes {size} batches of the data for each step, since the data "
            f"comes in batches (Task(batched=True)), and the first one has {size} samples. Leave "
            "batch_size out to take one batch a step.",
        )


def _check_ignored(loader: BatchLoader, task: Task) -> None:
    """Reject ignored targets that a mean over samples would count."""
    is_known = isinstance(loader.source, InMemory) and task.inputs is None
    for name, loss in named_losses(loader.loss) if is_known else ():
        items = task.items.get(name, "samples") if isinstance(task.items, Mapping) else task.items
        if loss.kind != "other" or items != "samples":
            continue
        assert isinstance(loader.source, InMemory)
        targets = loader.split(loader.source.tensors)[2]
        targets = get_named(targets, name, "targets") if name else targets
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            ignored = int((targets == IGNORED).sum())
            if ignored:
                setting = f"items={{{name!r}: 'tokens'}}" if name else "items='tokens'"
                raise TaskError(
                    f"{ignored} targets are {IGNORED}, which means ignored, and the loss "
                    f"{f'{name!r} ' if name else ''}is declared as a mean over samples. Pass "
                    f"Task({setting}), or a function of the batch."
                )
