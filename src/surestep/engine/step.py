"""The step: the only place that moves a parameter.

items = sum of the items of all micro-batches, on all ranks
zero the gradients
for each micro-batch: forward -> loss summed over its items -> backward of loss / items
unscale -> clip -> step
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine import metrics
from surestep.engine.data.batch import Batch, MicroBatch, nothing_of
from surestep.engine.data.transform import Transform
from surestep.engine.loss import Loss
from surestep.engine.losses.several import weighted
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


class Buffers:
    """The buffers of a model, to be put back where a step is skipped.

    A forward has moved BatchNorm's statistics before anybody knows that its step will not count.
    They are found by owner and name, since some modules put a new tensor in place of the old.
    """

    def __init__(self, model: nn.Module) -> None:
        self.slots = [
            (module._buffers, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._kept: list[Tensor] = []

    def keep(self) -> None:
        """Keep a copy."""
        self._kept = [_tensor(owner, name).detach().clone() for owner, name in self.slots]

    @torch.no_grad()
    def restore(self, outcome: Outcome) -> None:
        """Put the copy back where the step was not taken; on the device where only it knows."""
        if outcome.poison is None and outcome.took_step:
            return
        for (owner, name), kept in zip(self.slots, self._kept, strict=True):
            now, bad = _tensor(owner, name), outcome.poison
            if now.shape != kept.shape:  # a table that grew: only what it holds is new
                owner[name] = kept if bad is None else now
            else:
                now.copy_(kept if bad is None else torch.where(bad == 0, now, kept))


def _tensor(owner: Mapping[str, Tensor | None], name: str) -> Tensor:
    buffer = owner[name]
    assert buffer is not None
    return buffer


class Modes:
    """The train or eval mode that each module should have in training."""

    def __init__(self, model: nn.Module, keep_eval: tuple[nn.Module, ...] = ()) -> None:
        # Asked of the model itself, since a module may keep a part in eval mode in its train().
        model.train()
        held = set(model.modules())
        for module in keep_eval:
            if module not in held:
                raise TaskError(
                    f"keep_eval has a {type(module).__name__} that is not a part of the model. "
                    "Name a module of the model itself."
                )
            module.eval()
        self.wanted = [(module, module.training) for module in model.modules()]


class Update(NamedTuple):
    """What became of the parameters in a step; the fields are those of StepResult."""

    outcome: Outcome
    norms: GradNorm | None
    loss_sum: Tensor | None
    logged: list[tuple[str, Tensor]]


def update(parts: "Parts", batch: Batch, divisor: float, rate: float) -> Update:
    """Move the parameters by the gradient of the loss, added up over micro-batches / divisor."""
    parallel = parts.parallel
    loss_sum, logged = forward_backward(parts, batch, divisor)
    parallel.unscale()
    for watch in parts.on_backward:
        watch(parts.state)
    norms = parallel.clip_grad_norm()
    for group, peak in zip(parallel.optimizer.param_groups, parts.peak_rates, strict=True):
        group["lr"] = peak * rate
    if parts.momentum is not None:
        parts.momentum(parts.state.place.steps_taken)
    return Update(parallel.step(loss_sum, norms.total), norms, loss_sum, logged)


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
        batch = _of_all_ranks(parts.parallel, batch)
    items = batch.items
    divisor = items if parts.loss.divides else 1.0
    outcome, norms, loss_sum, logged = Outcome(False), None, None, _NOTHING
    if items:
        if parts.freeze is not None:
            parts.freeze(before.steps_taken)
        for module, training in parts.modes.wanted:
            if module.training is not training:
                module.training = training
        if parts.buffers.slots:
            parts.buffers.keep()
        outcome, norms, loss_sum, logged = parts.update(parts, batch, divisor, rate)
        if parts.buffers.slots:
            parts.buffers.restore(outcome)
        if state.average is not None:
            state.average.update(before.steps_taken + 1, outcome)
    if not outcome.took_step:
        state.counts.add(outcome, left_out=batch.left_out)
    step, steps_taken, epoch, _, seen = before
    there = (epoch + 1, 0) if batch.ends_epoch else (epoch, batch.end)
    state.place = Place(step + 1, steps_taken + outcome.took_step, *there, seen + batch.items)
    return StepResult(
        step=step + 1,
        epoch=batch.epoch,
        lr=parts.peak_rates[0] * rate,
        items=batch.items,
        divisor=divisor,
        samples=batch.samples,
        before=before,
        outcome=outcome,
        norms=norms,
        loss_sum=loss_sum,
        logged=logged,
    )


def _of_all_ranks(parallel: Parallel, batch: Batch) -> Batch:
    """Return a rank's share of a batch with the items of all ranks."""
    items, *part_items = parallel.sum(batch.items, *batch.part_items)
    return batch._replace(items=items, part_items=tuple(part_items))


def forward_backward(
    parts: Parts, batch: Batch, divisor: float
) -> tuple[Tensor, list[tuple[str, Tensor]]]:
    """Add up loss and gradients over the micro-batches; those without items add nothing.

    Of several ranks each goes forward and backward as often as the others, with items or without.
    """
    for parameter in parts.parallel.parameters:
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
        value, means = weighted(loss, outputs, micro, batch.part_items)
        logged += means
    if metrics.logged:
        logged += metrics.take_logged(micro.items / batch.items)
    if loss.is_sum and isinstance(value, Tensor):
        return value
    summed, named = loss.add_up(value, micro.items)
    logged += [(name, part.detach() / divisor) for name, part in named.items()]
    return summed


def _has_items(micro: MicroBatch) -> bool:
    return micro.items > 0
