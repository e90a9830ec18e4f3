"""Find the micro-batch size that fits on several ranks, before their first step.

A rank that runs out of memory must not leave the others waiting: each rank tries the step by
itself, without any exchange, and they agree afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import OutOfMemoryError
from surestep.engine.batch import map_tensors
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.device import clear_frames, describe_memory, ran_out, release_memory
from surestep.engine.diagnose.preserve_step import preserve_state
from surestep.engine.optim.param_groups import parameters_of
from surestep.engine.parallel.single import SingleProcessStrategy
from surestep.engine.plan.plan import Plan
from surestep.engine.step.train_step import StepContext, try_update


def find_size_on_ranks(context: StepContext, loader: BatchLoader, plan: Plan, why_not: str) -> None:
    """Split the batches so that a step fits on each rank; all ranks call it together.

    A step of the first batch is tried, which is as large as any other: forward, backward, clipping
    and the update of the optimizer. What it changes is restored.

    Args:
        context: of a step, whose strategy has a copy of the model on each rank.
        loader: of the training data.
        plan: the options of the run.
        why_not: why a smaller micro-batch changes the update; "" if it does not.

    Raises:
        OutOfMemoryError: one sample does not fit, or a smaller size changes the update.
    """
    world, single = context.strategy.world, SingleProcessStrategy(plan, context.state)
    alone = replace(context, strategy=single, on_backward=[], after_first_backward=None)
    while True:
        size = loader.layout.micro_batch_size
        error = _try_step(alone, loader)
        errors = [text for text in world.all_gather_text(error) if text]
        if not errors:
            return
        if size < 2 or why_not:
            hint = f"Set micro_batch_size={size // 2} if the update may change, since {why_not}."
            raise OutOfMemoryError(
                f"Memory ran out on {len(errors)} of {world.size} ranks in a trial of the first "
                f"step, in micro-batches of {size}: {errors[0]} {hint if size > 1 else ''}".rstrip()
            )
        loader.split_into(size // 2)


def _try_step(context: StepContext, loader: BatchLoader) -> str:
    """Take a step and restore what it changes; return the error if memory ran out, else ""."""
    found = ""
    try:
        batch = loader.move(next(loader.batches(0)))
        if loader.transform is not None:
            batch = loader.transform.preview(batch, 0)
        with preserve_state(context), _preserve_update(context.strategy.optimizer):
            if batch.items:
                try_update(context, batch)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        found = describe_memory(error, loader.device)["error"]
        clear_frames(error)
    release_memory(loader.device)
    return found


@contextmanager
def _preserve_update(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restore weights and the state of an optimizer, from copies on the host.

    A copy on the device would take memory that the step itself does not take.
    """
    weights = [(weight, _copy(weight)) for weight in parameters_of(optimizer)]
    state = {key: map_tensors(dict(slots), _copy) for key, slots in optimizer.state.items()}
    groups = [dict(group) for group in optimizer.param_groups]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, copied in weights:
                weight.copy_(copied)
        optimizer.state.clear()
        for key, slots in state.items():
            optimizer.state[key] = map_tensors(slots, partial(_place, weight=key))
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.update(before)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _place(value: Tensor, *, weight: Any) -> Tensor:
    """Return the state of a weight on its device; a count of steps stays on the host."""
    return value.to(weight.device) if value.dim() else value
