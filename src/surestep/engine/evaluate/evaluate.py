"""Evaluation: forward passes without gradients, weighted by items."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from surestep.base.errors import NoTargetsError, SurestepError, TaskError
from surestep.base.warn import warn
from surestep.engine.batch import (
    Batch,
    MicroBatch,
    batch_size_of,
    describe_shapes,
)
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.failures import explain_target
from surestep.engine.data.smaller_batches import Retry, retry_in_smaller_batches
from surestep.engine.data.sources import InMemory, MapStyleSource
from surestep.engine.device import ran_out, sum_dtype
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.hang_monitor import is_network_error
from surestep.engine.evaluate.nonfinite_inputs import explain_nonfinite, forward_of
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import code_of_losses, error_prefix, split_heads
from surestep.engine.losses.state import own_module
from surestep.engine.metrics.base import (
    OpenMetric,
    init_metrics,
    input_metric_outputs,
    pop_logged,
)
from surestep.engine.metrics.whole_set import metric_error
from surestep.engine.model.forward_errors import FAILURES, explain_forward
from surestep.engine.model.preserve import Write, preserve_buffers
from surestep.engine.modes import preserve_modes
from surestep.engine.own_generators import OwnGenerators, own_generators
from surestep.engine.rng import ModelRNG, preserve_torch_rng
from surestep.engine.value import Value, number

if TYPE_CHECKING:  # only with report.samples
    from surestep.engine.evaluate.collect_predictions import PredictionCollector

_NOTHING: Mapping[str, Any] = {}
_FIRST = 4  # samples: fewer might not show that columns were passed as a list of samples
_LONG_S = 60.0  # of reading a stream without a length, after which it may have no end


class EvaluationInterrupted(Exception):
    """An evaluation was interrupted, because the run stops."""


@contextmanager
def inference(
    model: nn.Module, loader: BatchLoader, loss: Loss, writes: Sequence[Write] = ()
) -> Iterator[None]:
    """Put a model and its loss in eval mode without gradients; restore modes and state.

    Not in `inference_mode`: a model could neither train with a tensor that it kept of a forward,
    nor compute a gradient in its forward under `enable_grad`. `writes` are the parameters and
    attributes that a forward changes.
    """
    with (
        eval_mode(model),
        nullcontext() if loss.module is None else eval_mode(loss.module),
        # Observers change their buffers in eval mode too.
        preserve_buffers(model, own_module(loss), writes=writes),
        torch.no_grad(),
        preserve_torch_rng(loader.device),
    ):
        try:
            yield
        finally:
            pop_logged()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in eval mode, and restore the modes."""
    with preserve_modes(model.modules()):
        model.eval()
        yield


class EvalAccumulator:
    """The sums of a loss and of metrics over an evaluation, on the device."""

    def __init__(
        self,
        loss: Loss,
        metrics: Mapping[str, Any],
        device: torch.device,
        world: Communicator = ALONE,
    ) -> None:
        self.loss = loss
        self.world = world
        self.parts = {
            part.name: EvalAccumulator(part.loss, {}, device, world) for part in loss.components
        }
        self.total = torch.zeros((), dtype=sum_dtype(device), device=device)
        self.items = 0.0
        self.samples = 0
        self.metrics: list[OpenMetric] = init_metrics(metrics, device)

    def add(self, outputs: Any, targets: Any, items: float) -> None:
        """Add the loss of a micro-batch that has items."""
        value, _ = self.loss.total(outputs, targets, items)
        self.total += value
        self.items += items

    def count(self, samples: int) -> None:
        """Count samples, with or without items."""
        self.samples += samples
        for part in self.parts.values():
            part.count(samples)

    def losses(self) -> dict[str, float]:
        """Return the mean loss, and of several losses each; waits for the device.

        NaN if nothing was counted. A declared sum is reported per sample, to compare splits of any
        size. A loss without items adds nothing to the weighted sum of several, as in a step. Empty
        if the model returns losses in train mode only.
        """
        if self.loss.is_in_training_only:
            return {}
        if not self.parts:
            own = [float(self.total), self.items, self.samples]
            total, items, samples = self.world.all_reduce_sum(own)
            divisor = samples if items and not self.loss.divides else items
            return {"loss": total / divisor if divisor else float("nan")}
        means = {name: part.losses()["loss"] for name, part in self.parts.items()}
        counted = self.world.all_reduce_sum(
            [self.parts[part.name].items for part in self.loss.components]
        )
        there = [part for part, n in zip(self.loss.components, counted, strict=True) if n]
        mean = sum(part.weight * means[part.name] for part in there) if there else float("nan")
        return {"loss": mean} | {f"loss_{name}": mean for name, mean in means.items()}

    def compute(self) -> dict[str, Value]:
        """Return the losses and each metric, NaN if nothing was counted; waits for the device.

        Raises:
            TaskError: two values have one name.
        """
        result: dict[str, Value] = {**self.losses()}
        for metric in self.metrics:
            values = metric.compute(self.world)
            for name in values.keys() & result.keys():
                raise TaskError(
                    f"metrics[{metric.name!r}] gives a value called {name!r}, and so does another "
                    "metric or the loss. Give the metric a different name in Task(metrics=...)."
                )
            result |= values
        return result


def eval_step(
    model: nn.Module,
    micro: MicroBatch,
    totals: EvalAccumulator,
    autocast: AbstractContextManager[Any],
    collector: PredictionCollector | None = None,
) -> None:
    """Add one micro-batch to the totals, and its predictions to what a report shows."""
    with autocast:
        outputs = model(*micro.args, **micro.kwargs)
        with explain_missing_targets("The loss", exist=micro.has_targets):
            _add_losses(outputs, micro, totals)
    totals.count(micro.samples)
    with explain_missing_targets("A metric", exist=micro.has_targets):
        _add_metrics(model, outputs, micro, totals)
    if collector is not None:
        collector.add(outputs, micro)


def _add_losses(outputs: Any, micro: MicroBatch, totals: EvalAccumulator) -> None:
    loss = totals.loss
    if micro.items and totals.parts:
        for head in split_heads(loss, outputs, micro):
            with error_prefix(head.name):
                totals.parts[head.name].add(
                    head.outputs, head.micro_batch.targets, head.micro_batch.items
                )
    elif micro.items and not loss.is_in_training_only:
        totals.add(outputs, loss.targets_of(micro), micro.items)


def _add_metrics(
    model: nn.Module, outputs: Any, micro: MicroBatch, totals: EvalAccumulator
) -> None:
    loss = totals.loss
    count = metric_weight(loss, micro) if totals.metrics and micro.samples else 0
    for metric in totals.metrics if micro.samples else ():
        seen = input_metric_outputs(metric, model, micro)
        predictions = loss.predictions(outputs) if seen is None else seen
        try:
            metric.update(predictions, micro.targets, count, positions_of(micro))
        except FAILURES as error:
            if ran_out(error):
                raise
            where = f"on samples from position {micro.position}"
            raise metric_error(metric.name, where, error, predictions, micro.targets) from error


@contextmanager
def explain_missing_targets(what: str, *, exist: bool) -> Iterator[None]:
    """Raise NoTargetsError for an error of a loss or metric if there are no targets."""
    try:
        yield
    except Exception as error:  # whatever the user's loss or metric raises
        if exist or is_network_error(error) or ran_out(error):
            raise
        text = f"{what} fails without: {type(error).__name__}: {error}".rstrip(".") + "."
        raise NoTargetsError(str(error) if isinstance(error, SurestepError) else text) from error


@contextmanager
def name_split(name: str) -> Iterator[None]:
    """Name the split in a NoTargetsError, and what to do with such data."""
    try:
        yield
    except NoTargetsError as error:
        instead = "Pass data to predict as Task(test=...)."
        if name == "test":
            instead = "Predict it: trainer.predict('test'), or surestep predict RUN."
        raise NoTargetsError(
            f"The {name} data cannot be evaluated, only predicted, since it has no targets. "
            f"{instead} {error}"
        ) from error


def check_targets(loader: BatchLoader) -> None:
    """Check that the first samples of a split have targets, unless workers read it, or it streams.

    Raises:
        NoTargetsError: it has none, and the loss counts them.
    """
    is_read_here = isinstance(loader.source, InMemory) or (
        isinstance(loader.source, MapStyleSource) and not loader.source.has_workers
    )
    some, raw = range(min(_FIRST, loader.layout.samples or 0)), None
    with suppress(Exception):  # of the user's dataset; the first evaluation reports it
        raw = loader.read_samples(some) if is_read_here else None
    if raw is not None:
        with name_split(loader.subset):
            loader.micro_batch(raw, 0, len(some))


def metric_weight(loss: Loss, micro: MicroBatch) -> int:
    """Return the denominator of a metric's mean; samples if there are no targets."""
    if micro.targets is None or loss.count is batch_size_of:
        return micro.rows if micro.collated is None else micro.collated
    return loss.count(micro.targets)


def positions_of(micro: MicroBatch) -> range:
    """Return the positions of a micro-batch's samples in its split."""
    return range(micro.position, micro.position + micro.rows)


def evaluate(
    model: nn.Module,
    loader: BatchLoader,
    loss: Loss,
    metrics: Mapping[str, Any],
    *,
    generators: OwnGenerators,
    autocast: AbstractContextManager[Any],
    world: Communicator = ALONE,
    writes: Sequence[Write] = (),
    collector: PredictionCollector | None = None,
) -> dict[str, Value]:
    """Return the mean loss and the metrics of one split; waits for the device.

    The batch size does not matter. `generators` are those of the model, the loss and the metrics.
    `collector` gets the outputs of each micro-batch.

    Raises:
        EvaluationInterrupted: `loader.leave` asks to stop.
        NoTargetsError: the split has no targets, and the loss or a metric needs them.
    """
    totals, has_targets = EvalAccumulator(loss, metrics, loader.device, world), True
    randomness = model_rng(loader, generators)
    with name_split(loader.subset), inference(model, loader, loss, writes=writes):
        if collector is not None:
            collector.clear()
        for micro in _micro_batches(loader, randomness):
            has_targets = micro.has_targets
            try:
                eval_step(model, micro, totals, autocast, collector)
            except FAILURES as error:
                if is_network_error(error) or ran_out(error):
                    raise
                raise _explained(error, model, micro, loader) from error
        if metrics:  # what one draws at the end does not depend on how the samples were split
            (samples,) = world.all_reduce_sum([totals.samples])
            randomness.seed_for("evaluate", int(samples), 0, loader.subset)
        with explain_missing_targets("A metric", exist=has_targets):
            return totals.compute()


def _explained(
    error: Exception, model: nn.Module, micro: MicroBatch, loader: BatchLoader
) -> SurestepError:
    """Return an error of an evaluation with the name of the split."""
    if isinstance(error, IndexError):
        where = f"the evaluation of the {loader.subset} data"
        target = explain_target(error, [micro], None, where)
        if target is not None:
            return target
    shapes = describe_shapes((micro.args, dict(micro.kwargs)))
    why = explain_forward(error, model, micro)
    return TaskError(
        f"The model or the loss fails on the {loader.subset} data, whose inputs have shapes "
        f"{shapes} at position {micro.position}: {why}"
    )


def generators_of(
    model: nn.Module, loss: Loss, metrics: Mapping[str, Any] = _NOTHING
) -> OwnGenerators:
    """Find the generators of a model and its losses, named as in training, and of metrics."""
    others = code_of_losses(loss) | {f"metrics.{name}": metric for name, metric in metrics.items()}
    found = own_generators(model, others)
    found.refresh()  # so that the next one compares with what there is now
    return found


def model_rng(loader: BatchLoader, generators: OwnGenerators) -> ModelRNG:
    """Return what seeds the global generators and these, as they are now."""
    randomness = ModelRNG(loader.seed, loader.device)
    randomness.generators += generators.refresh()
    return randomness


def measured_batches(loader: BatchLoader) -> Iterator[Batch]:
    """Yield the batches of a split; warn if a stream that may have no end is read for a minute."""
    may_be_endless = loader.layout.samples is None and loader.layout.limit is None
    end = time.monotonic() + _LONG_S if may_be_endless and not loader.has_ended else math.inf
    loader.measured = 0
    for batch in loader.batches(epoch=0):
        loader.measured = batch.end
        yield batch
        if time.monotonic() > end:
            end = math.inf
            warn(
                f"The {loader.subset} data is a stream without a length, and {batch.end} samples "
                f"of it were read in {_LONG_S:.0f} s. If it never ends, this evaluation never "
                "ends. Give a stream that ends: "
                f"{loader.subset}=lambda: itertools.islice(make_samples(), 1000). For evaluations "
                "during a run, limit_val_batches=100 is enough."
            )
    loader.has_ended = True


def _micro_batches(loader: BatchLoader, randomness: ModelRNG) -> Iterator[MicroBatch]:
    """Yield the micro-batches of a split, each with the generators seeded for its position.

    Raises:
        EvaluationInterrupted: `loader.leave` asks to stop.
    """
    for batch in measured_batches(loader):
        if loader.leave is not None and loader.leave():
            raise EvaluationInterrupted
        for micro in batch.micro_batches:
            randomness.seed_for("evaluate", micro.position, 0, loader.subset)
            yield micro


def evaluate_parts(
    model: nn.Module,
    loaders: Mapping[str, BatchLoader],
    loss: Loss,
    metrics: Mapping[str, Any],
    *,
    autocast: AbstractContextManager[Any],
    world: Communicator = ALONE,
    warn: Callable[[str], object] | None = None,
    writes: Sequence[Write] = (),
    generators: OwnGenerators | None = None,
    collectors: Mapping[str, PredictionCollector] = _NOTHING,
    retry: Callable[[BatchLoader], Retry] | None = None,
) -> dict[str, Value]:
    """Return the metrics of several splits, by "split/metric"; waits for the device.

    `warn` is called with the reason why a loss is not finite; the split is then read again. None
    searches for no reason. `writes` are the parameters and attributes that a forward changes.
    `generators` are what `generators_of` found before; without them, it searches again.
    `collectors` get the outputs, each those of a split. `retry` returns what decides whether to
    evaluate a split again in smaller micro-batches if memory runs out; all of it is, so nothing
    counts twice.

    Raises:
        TaskError: the Task has no loss.
    """
    if loaders and loss.kind == "none":
        raise TaskError("The Task has no loss to measure. Set Task(loss=...).")
    generators = generators or generators_of(model, loss, metrics)
    options: Any = {"autocast": autocast, "world": world, "writes": writes}
    metrics_by_name: dict[str, Value] = {}
    for part, loader in loaders.items():
        options["collector"] = collectors.get(part)
        measure = partial(evaluate, model, loader, loss, metrics, generators=generators, **options)
        if retry is None:
            values = measure()
        else:
            values = retry_in_smaller_batches(measure, loader, retry(loader))
        metrics_by_name |= {f"{part}/{name}": value for name, value in values.items()}
        if warn is not None and not math.isfinite(number(values.get("loss", 0.0))):
            with inference(model, loader, loss, writes=writes):
                micro_batches = _micro_batches(loader, model_rng(loader, generators))
                forward = forward_of(model, autocast)
                reason = explain_nonfinite(part, micro_batches, loss, forward, world)
            if reason:
                warn(reason)
    return metrics_by_name
