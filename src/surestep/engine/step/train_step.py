"""The step: the only place that moves a parameter.

items = sum of the items of all micro-batches, on all ranks
zero the gradients
for each micro-batch: forward -> loss summed over its items -> backward of loss / items
unscale -> clip -> step
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.engine.batch import Batch, MicroBatch, zero_loss
from surestep.engine.data.apply_transform import BatchTransform
from surestep.engine.global_rng import GlobalGenerators
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.base import HALF
from surestep.engine.losses.multi import weighted_sum
from surestep.engine.metrics import base as metrics
from surestep.engine.model.preserve import BufferSnapshot, TrainModes
from surestep.engine.parallel.single import SingleProcessStrategy
from surestep.engine.rng import ModelRNG
from surestep.engine.schedule.registry import Factor
from surestep.engine.state.state import Progress, State
from surestep.engine.step_outcome import GradNorm, StepOutcome


@dataclass(slots=True, eq=False)
class StepResult:
    """What a step did. Reading a tensor waits for the device.

    Attributes:
        step: its number, from 1; skipped steps count.
        epoch: the epoch its batch was from, from 0.
        lr: the learning rate of the first parameter group.
        items: what its loss is a mean over.
        divisor: the same, or 1 for a loss that is declared a sum.
        samples: samples in its global batch.
        before: the place before it.
        outcome: whether it moved the parameters, as far as the host knows.
        norms: norms of the gradients, before clipping; None where there was nothing to learn.
        loss_sum: the loss summed over its items, (); None where there was nothing to learn.
        logged: what the task logged.
        failed: the host knows that it was not finite, and it may not be skipped.
    """

    step: int
    epoch: int
    lr: float
    items: float
    divisor: float
    samples: int
    progress_before: Progress
    outcome: StepOutcome
    norms: GradNorm | None
    loss_sum: Tensor | None
    logged: list[tuple[str, Tensor]]
    is_fatal: bool = False

    @property
    def loss(self) -> Tensor:
        """The mean loss over the items of the global batch, (); NaN where there were none."""
        return torch.tensor(torch.nan) if self.loss_sum is None else self.loss_sum / self.divisor

    @property
    def grad_norm(self) -> Tensor:
        """The norm of all gradients before clipping, (); NaN where there were none."""
        return torch.tensor(torch.nan) if self.norms is None else self.norms.total

    @property
    def took_step(self) -> Tensor:
        """Whether the parameters moved, () bool."""
        poison = self.outcome.nonfinite_flag
        return torch.tensor(self.outcome.took_step) if poison is None else poison == 0


class UpdateResult(NamedTuple):
    """What became of the parameters in a step; the fields are those of StepResult."""

    outcome: StepOutcome
    norms: GradNorm | None
    loss_sum: Tensor | None
    logged: list[tuple[str, Tensor]]
    items: float


def compute_and_apply(
    parts: "StepContext", batch: Batch, divisor: float, rate: float
) -> UpdateResult:
    """Move the parameters by the gradient of the loss, added up over micro-batches / divisor."""
    parallel, generators = parts.strategy, parts.generators
    if generators.seeded:
        with generators.preserved():
            loss_sum, logged = forward_backward(parts, batch, divisor)
    else:  # nothing has drawn from numpy's or Python's generators until now
        python, numpy = generators.watched
        before = python[0], numpy[0]
        loss_sum, logged = forward_backward(parts, batch, divisor)
        if before != (python[0], numpy[0]):
            loss_sum, logged = _with_seeds(parts, batch, divisor)
    items = batch.items
    if parallel.world.size > 1:
        items, logged = parallel.settle_items(items, logged)
    if not items:
        return UpdateResult(StepOutcome(False), None, None, _NOTHING, items)
    parallel.unscale()
    for watch in parts.on_backward:
        watch(parts.state)
    norms = parallel.clip_grad_norm()
    for group, peak in zip(parallel.optimizer.param_groups, parts.peak_rates, strict=True):
        group["lr"] = peak * rate
    if parts.momentum is not None:
        parts.momentum(parts.state.progress.steps_taken)
    return UpdateResult(parallel.step(loss_sum, norms.total), norms, loss_sum, logged, items)


def _with_seeds(
    parts: "StepContext", batch: Batch, divisor: float
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Compute the gradients again, with seeds for numpy's and Python's generators, and from now on.

    Any other run would have other numbers at this step: that of a resumed run, say.
    """
    parts.generators.notice()
    parts.buffers.restore(StepOutcome(False))
    metrics.pop_logged()
    with parts.generators.preserved():
        return forward_backward(parts, batch, divisor)


@dataclass
class StepContext:
    """What a step is made of, wired once.

    `transform` changes the global batch, where the Task has one; `update` is what moves the
    parameters, and a Task that brings its own step has another.
    """

    state: State
    loss: Loss
    strategy: SingleProcessStrategy
    train_modes: TrainModes
    buffers: BufferSnapshot
    randomness: ModelRNG
    generators: GlobalGenerators
    autocast: AbstractContextManager[Any]
    lr_factor: Factor
    peak_rates: list[float]
    momentum: Callable[[int], None] | None = None
    on_backward: list[Callable[[State], None]] = field(default_factory=list)
    freeze: Callable[[int], None] | None = None  # what is frozen after so many steps taken
    update: Callable[["StepContext", Batch, float, float], UpdateResult] = compute_and_apply
    transform: BatchTransform | None = None


_NOTHING: list[tuple[str, Tensor]] = []


def train_step(parts: StepContext, batch: Batch) -> StepResult:
    """Move the parameters once, by the gradient of the mean loss over the global batch.

    The place is moved on; the schedule only with a step that was taken. A batch without items
    moves nothing.
    """
    state, before = parts.state, parts.state.progress
    rate = parts.lr_factor(before.steps_taken)
    batch = parts.transform(batch, before.step) if parts.transform and batch.samples else batch
    if parts.strategy.world.size > 1:
        batch = parts.strategy.count_items(batch, parts.loss)
    items, divides = batch.items, parts.loss.divides
    outcome, norms, loss_sum, logged = StepOutcome(False), None, None, _NOTHING
    if items:
        if parts.freeze is not None:
            parts.freeze(before.steps_taken)
        for module, training in parts.train_modes.wanted:
            if module.training is not training:
                module.training = training
        if parts.buffers.slots:
            parts.buffers.save()
        divisor = items if divides else 1.0
        outcome, norms, loss_sum, logged, items = parts.update(parts, batch, divisor, rate)
        if parts.buffers.slots:
            parts.buffers.restore(outcome)
        if state.average is not None:
            state.average.update(before.steps_taken + 1, outcome)
    if not outcome.took_step:
        state.counts.add(outcome, left_out=batch.after_spike)
    step, steps_taken, epoch, _, seen = before
    there = (epoch + 1, 0) if batch.ends_epoch else (epoch, batch.end)
    state.progress = Progress(step + 1, steps_taken + outcome.took_step, *there, seen + items)
    return StepResult(
        step=step + 1,
        epoch=batch.epoch,
        lr=parts.peak_rates[0] * rate,
        items=items,
        divisor=items if divides else 1.0,
        samples=batch.samples,
        progress_before=before,
        outcome=outcome,
        norms=norms,
        loss_sum=loss_sum,
        logged=logged,
    )


def forward_backward(
    parts: StepContext, batch: Batch, divisor: float
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Add up loss and gradients over the micro-batches; those without items add nothing.

    Of several ranks each goes forward and backward as often as the others, with items or without.
    """
    for parameter in parts.strategy.cleared:
        parameter.grad = None
    parallel, step = parts.strategy, parts.state.progress.step
    alone = parallel.world.size == 1
    total: Tensor | None = None
    logged: list[tuple[str, Tensor]] = []
    left = len(batch.micro_batches)
    if alone and left > 1:
        left = sum(map(_has_items, batch.micro_batches))
    for micro in batch.micro_batches:
        if alone and not micro.items:
            continue
        left -= 1
        parts.randomness.seed_micro_batch(step, micro.position)
        with parallel.sync_grads(when=not left):
            with parts.autocast:
                outputs = parallel.module(*micro.args, **micro.kwargs)
                value = _loss_of(parts, batch, micro, outputs, divisor, logged)
            parallel.backward(value, divisor)
        part = value.detach()
        total = part if total is None else total + part
    assert total is not None
    return total if alone else parallel.reduce_loss(total), logged


def _loss_of(
    parts: StepContext,
    batch: Batch,
    micro: MicroBatch,
    outputs: Any,
    divisor: float,
    logged: list[tuple[str, Tensor]],
) -> Tensor:
    """Return the loss of a micro-batch summed over its items, and note what it logs."""
    loss, targets = parts.loss, micro.targets
    if not micro.items:
        return zero_loss(outputs)
    if loss.teacher is not None:
        targets = loss.with_teacher_outputs(micro.args, micro.kwargs, targets)
    if not loss.components:
        value = loss.value(outputs, targets)
    else:
        ranks = parts.strategy.world.size
        value, means = weighted_sum(loss, outputs, micro, batch.part_items, reach_all=ranks > 1)
        logged += means
    if metrics.logged:
        logged += metrics.pop_logged(micro.items / batch.items)
    if loss.is_sum and isinstance(value, Tensor) and value.dtype not in HALF:
        return value
    summed, named = loss.to_sum(loss.widened(value, outputs, targets), micro.items)
    logged += [(name, part.detach() / divisor) for name, part in named.items()]
    return summed


def _has_items(micro: MicroBatch) -> bool:
    return micro.items > 0
