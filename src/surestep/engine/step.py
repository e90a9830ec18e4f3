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

from surestep.engine import metrics
from surestep.engine.data.batch import Batch, MicroBatch, nothing_of
from surestep.engine.data.transform import Transform
from surestep.engine.global_generators import GlobalGenerators
from surestep.engine.loss import Loss
from surestep.engine.losses.base import HALF
from surestep.engine.losses.several import weighted
from surestep.engine.model.kept import Buffers, Modes
from surestep.engine.parallel.base import GradNorm, Outcome, Parallel
from surestep.engine.schedule.shape import Factor
from surestep.engine.seed import ModelRandomness
from surestep.engine.state import Place, State


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
    before: Place
    outcome: Outcome
    norms: GradNorm | None
    loss_sum: Tensor | None
    logged: list[tuple[str, Tensor]]
    failed: bool = False

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
        poison = self.outcome.poison
        return torch.tensor(self.outcome.took_step) if poison is None else poison == 0


class Update(NamedTuple):
    """What became of the parameters in a step; the fields are those of StepResult."""

    outcome: Outcome
    norms: GradNorm | None
    loss_sum: Tensor | None
    logged: list[tuple[str, Tensor]]
    items: float


def update(parts: "Parts", batch: Batch, divisor: float, rate: float) -> Update:
    """Move the parameters by the gradient of the loss, added up over micro-batches / divisor."""
    parallel, generators = parts.parallel, parts.generators
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
        return Update(Outcome(False), None, None, _NOTHING, items)
    parallel.unscale()
    for watch in parts.on_backward:
        watch(parts.state)
    norms = parallel.clip_grad_norm()
    for group, peak in zip(parallel.optimizer.param_groups, parts.peak_rates, strict=True):
        group["lr"] = peak * rate
    if parts.momentum is not None:
        parts.momentum(parts.state.place.steps_taken)
    return Update(parallel.step(loss_sum, norms.total), norms, loss_sum, logged, items)


def _with_seeds(
    parts: "Parts", batch: Batch, divisor: float
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Compute the gradients again, with seeds for numpy's and Python's generators, and from now on.

    Any other run would have other numbers at this step: that of a resumed run, say.
    """
    parts.generators.notice()
    parts.buffers.restore(Outcome(False))
    metrics.take_logged()
    with parts.generators.preserved():
        return forward_backward(parts, batch, divisor)


@dataclass
class Parts:
    """What a step is made of, wired once.

    `transform` changes the global batch, where the Task has one; `update` is what moves the
    parameters, and a Task that brings its own step has another.
    """

    state: State
    loss: Loss
    parallel: Parallel
    modes: Modes
    buffers: Buffers
    randomness: ModelRandomness
    generators: GlobalGenerators
    autocast: AbstractContextManager[Any]
    rate: Factor
    peak_rates: list[float]
    momentum: Callable[[int], None] | None = None
    on_backward: list[Callable[[State], None]] = field(default_factory=list)
    freeze: Callable[[int], None] | None = None  # what is frozen after so many steps taken
    update: Callable[["Parts", Batch, float, float], Update] = update
    transform: Transform | None = None


_NOTHING: list[tuple[str, Tensor]] = []


def train_step(parts: Parts, batch: Batch) -> StepResult:
    """Move the parameters once, by the gradient of the mean loss over the global batch.

    The place is moved on; the schedule only with a step that was taken. A batch without items
    moves nothing.
    """
    state, before = parts.state, parts.state.place
    rate = parts.rate(before.steps_taken)
    batch = parts.transform(batch, before.step) if parts.transform and batch.samples else batch
    if parts.parallel.world.size > 1:
        batch = parts.parallel.count_items(batch, parts.loss)
    items, divides = batch.items, parts.loss.divides
    outcome, norms, loss_sum, logged = Outcome(False), None, None, _NOTHING
    if items:
        if parts.freeze is not None:
            parts.freeze(before.steps_taken)
        for module, training in parts.modes.wanted:
            if module.training is not training:
                module.training = training
        if parts.buffers.slots:
            parts.buffers.keep()
        divisor = items if divides else 1.0
        outcome, norms, loss_sum, logged, items = parts.update(parts, batch, divisor, rate)
        if parts.buffers.slots:
            parts.buffers.restore(outcome)
        if state.average is not None:
            state.average.update(before.steps_taken + 1, outcome)
    if not outcome.took_step:
        state.counts.add(outcome, left_out=batch.left_out)
    step, steps_taken, epoch, _, seen = before
    there = (epoch + 1, 0) if batch.ends_epoch else (epoch, batch.end)
    state.place = Place(step + 1, steps_taken + outcome.took_step, *there, seen + items)
    return StepResult(
        step=step + 1,
        epoch=batch.epoch,
        lr=parts.peak_rates[0] * rate,
        items=items,
        divisor=items if divides else 1.0,
        samples=batch.samples,
        before=before,
        outcome=outcome,
        norms=norms,
        loss_sum=loss_sum,
        logged=logged,
    )


def forward_backward(
    parts: Parts, batch: Batch, divisor: float
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Add up loss and gradients over the micro-batches; those without items add nothing.

    Of several ranks each goes forward and backward as often as the others, with items or without.
    """
    for parameter in parts.parallel.cleared:
        parameter.grad = None
    parallel, step = parts.parallel, parts.state.place.step
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
        parts.randomness.at(step, micro.position)
        with parallel.sync_grads(when=not left):
            with parts.autocast:
                outputs = parallel.module(*micro.args, **micro.kwargs)
                value = _loss_of(parts, batch, micro, outputs, divisor, logged)
            parallel.backward(value, divisor)
        part = value.detach()
        total = part if total is None else total + part
    assert total is not None
    return total if alone else parallel.add_up(total), logged


def _loss_of(
    parts: Parts,
    batch: Batch,
    micro: MicroBatch,
    outputs: Any,
    divisor: float,
    logged: list[tuple[str, Tensor]],
) -> Tensor:
    """Return the loss of a micro-batch summed over its items, and note what it logs."""
    loss, targets = parts.loss, micro.targets
    if not micro.items:
        return nothing_of(outputs)
    if loss.teacher is not None:
        targets = loss.taught(micro.args, micro.kwargs, targets)
    if not loss.parts:
        value = loss.value(outputs, targets)
    else:
        ranks = parts.parallel.world.size
        value, means = weighted(loss, outputs, micro, batch.part_items, reach_all=ranks > 1)
        logged += means
    if metrics.logged:
        logged += metrics.take_logged(micro.items / batch.items)
    if loss.is_sum and isinstance(value, Tensor) and value.dtype not in HALF:
        return value
    summed, named = loss.add_up(loss.widened(value, outputs, targets), micro.items)
    logged += [(name, part.detach() / divisor) for name, part in named.items()]
    return summed


def _has_items(micro: MicroBatch) -> bool:
    return micro.items > 0
