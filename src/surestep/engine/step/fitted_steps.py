"""Take a step that ran out of memory again, in smaller micro-batches: `micro_batch_size="fit"`.

What such a step changed before its update is restored, so the update is that of a run whose
micro-batches were smaller from this step on. An update that began is not undone: what it allocates
does not depend on the micro-batch size.
"""

from collections.abc import Callable
from inspect import unwrap
from types import CodeType

import torch

from surestep.engine.batch import Batch
from surestep.engine.data.apply_transform import BatchTransform
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.device import clear_frames, describe_memory, ran_out
from surestep.engine.metrics import base as metrics
from surestep.engine.model.preserve import BufferSnapshot
from surestep.engine.modes import TrainModes
from surestep.engine.optim.freezing import UnfreezeSchedule
from surestep.engine.parallel.base import Strategy
from surestep.engine.plan.fitting import SizeChange, SizesByStep
from surestep.engine.state.average import AveragedWeights
from surestep.engine.step.graphed_steps import GraphedSteps
from surestep.engine.step.lbfgs import lbfgs_update
from surestep.engine.step.manual_step import manual_update
from surestep.engine.step.multi_optimizer import OptimizerSet
from surestep.engine.step.part import Parts
from surestep.engine.step.train_step import (
    PARTS_OF_STEP,
    StepContext,
    StepResult,
    forward_backward,
    train_step,
)
from surestep.engine.step_outcome import StepOutcome

# How far a step was when memory ran out, by the function that `train_step` was calling.
_ATTRIBUTES, _TRANSFORM, _BUFFERS, _GRADIENTS, _CLIPPING, _CALLBACK, _FIXED = range(7)
_PHASES = {
    unwrap(function).__code__: phase
    for function, phase in (
        (BufferSnapshot.save_attributes, _ATTRIBUTES),
        (BatchTransform.__call__, _TRANSFORM),
        (BufferSnapshot.save_tensors, _BUFFERS),
        (forward_backward, _GRADIENTS),
        (GraphedSteps.update, _GRADIENTS),  # a replay takes no memory, and to record it does
        (torch.amp.GradScaler.unscale_, _GRADIENTS),  # the scaler notes only what succeeded
        (Strategy.clip_grad_norm, _CLIPPING),
        (Parts.call_backward, _CALLBACK),  # it may have counted the step
        # Anything else counts as fixed: no micro-batch size changes what it takes.
    )
}
_UPDATE = "in the update, after the backward pass"
_FIXED_PARTS = {  # any other is a part of the update
    unwrap(function).__code__: part
    for function, part in (
        (UnfreezeSchedule.apply, "where layers are unfrozen, before the forward pass"),
        (TrainModes.apply, "where modules are set to training mode, before the forward pass"),
        (AveragedWeights.take_in, "in the average of the weights, before the forward pass"),
    )
}


class StepAgain(Exception):
    """The step ran out of memory and changed nothing: it is to be taken again."""


class FittedSteps:
    """Takes the steps of a loop.

    Args:
        loader: of the training data.
        sizes: that are known so far.
        record: makes a change durable; it is called before the step is taken again.
        why_not: why a smaller micro-batch changes the update, so that the step is not taken again.
        is_shared: several ranks take a step together: the run ends, and uses the smaller size when
            it is started again.

    Attributes:
        sizes: as given, with the changes since.
        advice: what to do after memory ran out, as sentences; "" if nothing is known.
    """

    def __init__(
        self,
        loader: BatchLoader,
        sizes: SizesByStep,
        record: Callable[[SizeChange], object],
        *,
        why_not: str = "",
        is_shared: bool = False,
    ) -> None:
        self.sizes, self.advice = sizes, ""
        self._loader, self._record = loader, record
        self._why_not, self._is_shared = why_not, is_shared

    def use_size(self, step: int) -> float:
        """Read the batch of a step, and those after it, in the size of the step.

        Returns:
            The last step with this size.
        """
        size = self.sizes.at(step)
        if size is not None and size != self._loader.layout.micro_batch_size:
            self._loader.split_into(size)
        return self.sizes.last_before_change(step)

    def take(self, context: StepContext, batch: Batch) -> StepResult:
        """Take a step.

        Raises:
            StepAgain: memory ran out, and the step is to be taken again in the new size.
        """
        generators, versions = context.generators, _versions(context)
        watched = None if generators.seeded else generators.copy_states()
        try:
            return train_step(context, batch)
        except (RuntimeError, MemoryError) as error:
            phase = _find_phase(error)
            change = self._find_change(context, batch, error, phase)
            if change is None:
                raise
            clear_frames(error)
            _restore(context, phase)
            if watched is not None:
                generators.restore(*watched)
            if _versions(context) != versions:
                self.advice = (
                    "A hook changed weights during the backward pass, so the step cannot be taken "
                    f"again. Set micro_batch_size={change.size}."
                )
                raise
        self.sizes.add(change.step, change.size)
        self._record(change)
        raise StepAgain

    def _find_change(
        self, context: StepContext, batch: Batch, error: BaseException, phase: int
    ) -> SizeChange | None:
        """Return the size to take a step again with; None: the error ends the run."""
        if not ran_out(error) or phase == _CALLBACK:
            return None
        if phase == _FIXED:
            self.advice = _describe_fixed(find_fixed_part(error))
            return None
        largest = max((micro.samples for micro in batch.micro_batches), default=0)
        before = min(self._loader.layout.micro_batch_size, largest)
        if before < 2:
            return None
        step, held = context.state.progress.step + 1, describe_memory(error, self._loader.device)
        change = SizeChange(step, before // 2, before, **held)
        if self._why_not:
            self.advice = (
                f"Smaller micro-batches change the update here ({self._why_not}), so "
                f"micro_batch_size='fit' does not use them. Set micro_batch_size={change.size} if "
                f"the update may change, or use a smaller batch_size."
            )
            return None
        if not self._is_shared:
            return change
        self._record(change)
        self.advice = (
            f"Run the same command again: the run continues in micro-batches of {change.size} "
            f"from step {step} on."
        )
        return None


_CALLERS = {
    *(unwrap(part).__code__ for part in (FittedSteps.take, lbfgs_update, *PARTS_OF_STEP)),
    BatchTransform.__call__.__code__,  # that of `torch.no_grad()` as a decorator
}


def find_fixed_part(error: BaseException) -> str:
    """Return which part of a step an error is of, if it takes the same for all micro-batch sizes.

    Returns:
        Such as "in the update, after the backward pass"; "" for any other part.
    """
    codes = _list_codes(error)
    if manual_update.__code__ in codes:  # it may update at any time
        return _UPDATE if OptimizerSet.step.__code__ in codes else ""
    if train_step.__code__ not in codes or _find_phase(error) != _FIXED:
        return ""
    return _FIXED_PARTS.get(_find_called(codes), _UPDATE)


def _find_phase(error: BaseException) -> int:
    return _PHASES.get(_find_called(_list_codes(error)), _FIXED)


def _list_codes(error: BaseException) -> list[CodeType]:
    """Return the functions in the traceback of an error, the first to be called first."""
    codes, entry = [], error.__traceback__
    while entry is not None:
        codes.append(entry.tb_frame.f_code)
        entry = entry.tb_next
    return codes


def _find_called(codes: list[CodeType]) -> CodeType:
    """Return the first function in a traceback that is not a part of the step."""
    inner = codes[codes.index(train_step.__code__) :]
    return next((code for code in inner if code not in _CALLERS), train_step.__code__)


def _describe_fixed(part: str) -> str:
    advice = f"It ran out {part}. That takes the same memory for every micro_batch_size"
    if part != _UPDATE:
        return f"{advice}: free some memory of the device, and resume from the last checkpoint."
    return (
        f"{advice}, and it may have changed some of the weights: resume from the last checkpoint "
        "with an optimizer that takes less, such as optim.name='adamw8bit' or 'sgd'."
    )


def _restore(context: StepContext, phase: int) -> None:
    """Restore what a step changed before its update."""
    for parameter in context.strategy.cleared:
        parameter.grad = None
    metrics.pop_logged()
    if phase >= _GRADIENTS:
        context.buffers.restore(StepOutcome(False))
    elif phase > _ATTRIBUTES:  # buffers were not copied yet
        context.buffers.restore_attributes()
    scaler = context.state.scaler
    if phase == _CLIPPING and scaler.is_enabled():  # it notes that the gradients are unscaled
        scale = scaler.state_dict()
        scaler.update()
        scaler.load_state_dict(scale)


def _versions(context: StepContext) -> list[int]:
    """Return counters that change if weights are written to, but not of those a forward changes."""
    written = {id(module._parameters[name]) for _, module, name in context.written}
    return [p._version for p in context.strategy.parameters if id(p) not in written]
