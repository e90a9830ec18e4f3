"""One training step: the only code that updates parameters.

items = items of all micro-batches, on all ranks
for each micro-batch: forward -> loss summed over its items -> backward of loss / items
unscale -> clip -> optimizer step
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.engine.batch import Batch, MicroBatch, zero_loss
from surestep.engine.buffers import Slot
from surestep.engine.data.apply_transform import BatchTransform
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.base import HALF
from surestep.engine.losses.multi import weighted_sum
from surestep.engine.metrics import base as metrics
from surestep.engine.model.attribute_writes import AttributeWrites
from surestep.engine.model.attributes import AttributeSnapshot
from surestep.engine.model.preserve import BufferSnapshot, Write
from surestep.engine.modes import TrainModes
from surestep.engine.parallel.base import Strategy
from surestep.engine.rng import GlobalGenerators, ModelRNG
from surestep.engine.schedule.groups import GroupSchedule
from surestep.engine.state.state import Progress, State
from surestep.engine.step.unheld_leaves import UnheldLeafCheck
from surestep.engine.step_outcome import Gradients, GradNorm, Logged, StepOutcome


@dataclass(slots=True, eq=False)
class StepResult:
    """What a step did. Reading a tensor waits for the device.

    Attributes:
        step: its number, from 1; skipped steps count.
        epoch: the epoch of its batch, from 0.
        lr: the learning rate of the first parameter group.
        items: number of items that the loss is a mean over.
        divisor: the same, or 1 for a loss that is declared a sum.
        samples: samples in its global batch.
        progress_before: the progress before it.
        outcome: whether it updated the parameters, as far as the host knows.
        norms: norms of the gradients, before clipping; None if the batch had no items.
        loss_sum: the loss summed over its items, (); None if the batch had no items.
        logged: parts of the values that the Task logged.
        is_fatal: the host knows that it was not finite, and it must not be skipped.
        numbers_before: the attributes that are numbers, before it; None if no forward changes any.
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
    logged: list[Logged]
    is_fatal: bool = False
    numbers_before: AttributeSnapshot | None = None

    @property
    def loss(self) -> Tensor:
        """The mean loss over the items of the global batch, (); NaN if there were none."""
        return torch.tensor(torch.nan) if self.loss_sum is None else self.loss_sum / self.divisor

    @property
    def grad_norm(self) -> Tensor:
        """The norm of all gradients before clipping, (); NaN if there were none."""
        return torch.tensor(torch.nan) if self.norms is None else self.norms.total

    @property
    def took_step(self) -> Tensor:
        """Whether the parameters were updated, () bool."""
        flag = self.outcome.nonfinite_flag
        return torch.tensor(self.outcome.took_step) if flag is None else flag == 0


class UpdateResult(NamedTuple):
    """What an update did; the fields are those of StepResult."""

    outcome: StepOutcome
    norms: GradNorm | None
    loss_sum: Tensor | None
    logged: list[Logged]


@dataclass
class StepContext:
    """The parts of a step, built once.

    Attributes:
        on_backward: called after the backward pass, before clipping.
        custom_update: replaces forward, backward, clipping and the optimizer step, for a Task with
            its own step and for L-BFGS. Its arguments are the context, the batch and the divisor of
            the loss.
        transform: transforms the global batch.
        leaves: checks that an optimizer has every tensor that gets a gradient.
        written: the parameters that a forward changes.
        attributes: those that a forward changes.
        after_first_backward: called once, before the first update.
        signature: what the model takes and returns, if it was called with the first batch.
    """

    state: State
    loss: Loss
    strategy: Strategy
    train_modes: TrainModes
    buffers: BufferSnapshot
    randomness: ModelRNG
    generators: GlobalGenerators
    autocast: AbstractContextManager[Any]
    schedule: GroupSchedule
    on_backward: list[Callable[[State], None]] = field(default_factory=list)
    custom_update: Callable[["StepContext", Batch, float], UpdateResult] | None = None
    transform: BatchTransform | None = None
    leaves: UnheldLeafCheck | None = None
    written: Sequence[Slot] = ()
    attributes: AttributeWrites | None = None
    after_first_backward: Callable[[], None] | None = None
    signature: dict[str, Any] | None = None

    @property
    def writes(self) -> list[Write]:
        """The parameters and attributes that a forward changes."""
        return [*self.written, *(() if self.attributes is None else self.attributes.slots)]

    def end_first_backward(self) -> None:
        """Call what waits for the first backward pass of a run."""
        call, self.after_first_backward = self.after_first_backward, None
        if call is not None:
            call()


_NOT_UPDATED = UpdateResult(StepOutcome(False), None, None, [])
_UNCHANGED = nullcontext()


def train_step(context: StepContext, batch: Batch) -> StepResult:
    """Update the parameters once, by the gradient of the mean loss over the global batch.

    The progress always advances; the schedule only with a step that was taken. A batch without
    items updates nothing.
    """
    state, strategy, before = context.state, context.strategy, context.state.progress
    schedule, buffers = context.schedule, context.buffers
    if buffers.has_attributes:
        buffers.save_attributes()  # the transform may change some
    if len(context.strategy.optimizer.param_groups) != len(schedule.groups):
        schedule.check_count()
    lr_factor = schedule.factor_at(before.steps_taken)
    if context.transform is not None and batch.samples:
        batch = context.transform(batch, before.step)
    if strategy.world.size > 1:
        batch = strategy.count_items(batch, context.loss)
    items, update = batch.items, _NOT_UPDATED
    if items:
        if state.unfreezing is not None:
            state.unfreezing.apply(before.steps_taken)
        for module, training in context.train_modes.wanted:
            if module.training is not training:
                context.train_modes.apply()
                break
        if state.average is not None:
            state.average.take_in()
        if buffers.slots:
            buffers.save_tensors()
        divisor = items if context.loss.divides else 1.0
        if context.custom_update is not None:
            update = context.custom_update(context, batch, divisor)
        else:
            # The optimizer may draw from the generators of numpy and Python as well.
            with context.generators.preserved() if context.generators.seeded else _UNCHANGED:
                update, items = _usual_update(context, batch, divisor, lr_factor)
        if buffers.slots or buffers.has_attributes:
            buffers.restore(update.outcome)
    if state.average is not None:
        state.average.update(before.step + 1, update.outcome)
    took_step = update.outcome.took_step
    if not took_step:
        state.counts.add(update.outcome, left_out=batch.after_spike)
    step, steps_taken, seen = before.step + 1, before.steps_taken + took_step, before.items + items
    epoch, position = (before.epoch + 1, 0) if batch.ends_epoch else (before.epoch, batch.end)
    state.progress = Progress(step, steps_taken, epoch, position, seen)
    first, divisor = schedule.groups[0], items if context.loss.divides else 1.0
    lr = first.lr * (lr_factor / first.factor)
    done = (step, batch.epoch, lr, items, divisor, batch.samples, before, *update)
    return StepResult(*done, numbers_before=buffers.numbers)


def try_update(context: StepContext, batch: Batch) -> None:
    """Update the parameters once to see what it takes, without schedule, loss scale and guard."""
    forward_backward(context, batch, batch.items if context.loss.divides else 1.0)
    context.strategy.clip_grad_norm()
    context.strategy.optimizer.step()


def _usual_update(
    context: StepContext, batch: Batch, divisor: float, lr_factor: float
) -> tuple[UpdateResult, float]:
    """Compute the gradients and step the optimizer; return the items of all ranks too.

    The gradients are computed again, seeded, if something draws from numpy or Python for the first
    time. One function for both, since each call costs a small step.
    """
    state, strategy, schedule = context.state, context.strategy, context.schedule
    generators = context.generators
    if generators.seeded:
        loss_sum, items, logged = forward_backward(context, batch, divisor)
    else:
        python, numpy = generators.watched
        before = python[0], numpy[0], generators.python.gauss_next
        if before[1] != generators.numpy_seen:  # code between the steps drew from numpy's
            generators.drop_stored()
        states = generators.memory[0].tobytes(), generators.memory[1].tobytes()  # in 0.1 us
        loss_sum, items, logged = forward_backward(context, batch, divisor)
        if before != (python[0], numpy[0], generators.python.gauss_next):
            generators.restore(states, before[2])
            loss_sum, items, logged = _recompute_seeded(context, batch, divisor)
    if context.after_first_backward is not None:
        context.end_first_backward()
    if not items:  # under DDP the items of all ranks may arrive with the gradients
        return _NOT_UPDATED, items
    strategy.unscale()
    for hook in context.on_backward:
        hook(state)
    norms = strategy.clip_grad_norm()
    if schedule.cycles_momentum:  # your code may have set it and no rate
        schedule.note_changes()
    for group, own in zip(strategy.optimizer.param_groups, schedule.groups, strict=True):
        if group["lr"] is not own.written:
            schedule.note_changes()
        group["lr"] = own.written = own.lr * (lr_factor / own.factor)
    schedule.factor = lr_factor
    if schedule.cycles_momentum:
        schedule.write_momentum(state.progress.steps_taken)
    outcome = strategy.step(loss_sum, norms.total)
    return UpdateResult(outcome, norms, loss_sum, logged), items


def _recompute_seeded(context: StepContext, batch: Batch, divisor: float) -> Gradients:
    """Compute the gradients again with seeded generators, and seed them from now on.

    A resumed run, for example, would otherwise have other numbers at this step.
    """
    context.generators.seed_from_now_on()
    context.buffers.restore(StepOutcome(False))
    metrics.pop_logged()
    with context.generators.preserved():
        return forward_backward(context, batch, divisor)


# What the traceback of an error has before the function that a step was calling.
PARTS_OF_STEP: tuple[Any, ...] = (train_step, _usual_update, _recompute_seeded)


def forward_backward(context: StepContext, batch: Batch, divisor: float) -> Gradients:
    """Accumulate the loss and its gradients over the micro-batches; those without items add none.

    With several ranks, each runs as many forward and backward passes as the others.
    """
    strategy, step = context.strategy, context.state.progress.step
    for parameter in strategy.cleared:
        parameter.grad = None
    is_shared = strategy.world.size > 1
    micro_batches: Sequence[MicroBatch] = batch.micro_batches
    if len(micro_batches) > 1 and not is_shared:
        micro_batches = [micro_batch for micro_batch in micro_batches if micro_batch.items]
    total: Tensor | None = None
    logged: list[Logged] = []
    for micro_batch in micro_batches:
        context.randomness.seed_for("model", step, micro_batch.position)
        with strategy.sync_grads(when=micro_batch is micro_batches[-1]):
            part = add_gradients(context, batch, micro_batch, divisor, logged)
        total = part if total is None else total + part
    assert total is not None
    gradients = Gradients(total, batch.items, logged)
    return strategy.finish_backward(gradients) if is_shared else gradients


def add_gradients(
    context: StepContext,
    batch: Batch,
    micro_batch: MicroBatch,
    divisor: float,
    logged: list[Logged],
) -> Tensor:
    """Run the forward and backward pass of a micro-batch; add to `logged` what it logs.

    Returns:
        Its loss summed over its items, ().
    """
    strategy, leaves = context.strategy, context.leaves
    with context.autocast:
        outputs = strategy.module(*micro_batch.args, **micro_batch.kwargs)
        loss = _loss_sum(context, batch, micro_batch, outputs, divisor, logged)
    if leaves is not None and not leaves.checked and micro_batch.items:
        leaves.check(loss, micro_batch)
    strategy.backward(loss, divisor)
    if metrics.logged:  # some by hooks of the backward, or again by a forward in it
        taken = metrics.pop_logged(micro_batch.items)
        logged += taken if micro_batch.items else []
    return loss.detach()


def _loss_sum(
    context: StepContext,
    batch: Batch,
    micro_batch: MicroBatch,
    outputs: Any,
    divisor: float,
    logged: list[Logged],
) -> Tensor:
    """Return the loss of a micro-batch summed over its items; add to `logged` what it logs."""
    loss, targets = context.loss, micro_batch.targets
    if not micro_batch.items:
        return zero_loss(outputs)
    if loss.teacher is not None:
        targets = loss.targets_of(micro_batch)
    if not loss.components:
        value = loss.value(outputs, targets)
    else:
        several = context.strategy.world.size > 1
        value, means = weighted_sum(loss, outputs, micro_batch, batch.part_items, reach_all=several)
        logged += means
    if loss.is_sum and isinstance(value, Tensor) and value.dtype not in HALF:
        return value
    summed, named = loss.to_sum(loss.widen(value, outputs, targets), micro_batch.items)
    logged += [Logged(name, part.detach() / divisor) for name, part in named.items()]
    return summed
