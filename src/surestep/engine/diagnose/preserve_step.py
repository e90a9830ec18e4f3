"""Restore what a step changes that is taken only to see what it does."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from surestep.engine.metrics.base import pop_logged
from surestep.engine.model.attributes import preserve_attributes
from surestep.engine.model.compile import disable_compile
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.rng import derive_seed, preserve_torch_rng, seed_loading
from surestep.engine.step.multi_optimizer import (
    OptimizerSnapshot,
    WeightSnapshot,
    find_followers,
    saved_optimizer,
)
from surestep.engine.step.train_step import StepContext


@contextmanager
def _without_hooks(*optimizers: torch.optim.Optimizer) -> Iterator[None]:
    """Remove the hooks of optimizers, which may keep an average of the weights, for a while."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooks = [getattr(optimizer, name, {}) for optimizer in optimizers for name in names]
    before = [dict(of_one) for of_one in hooks]
    for of_one in hooks:
        of_one.clear()
    try:
        yield
    finally:
        for of_one, kept in zip(hooks, before, strict=True):
            of_one.update(kept)


@contextmanager
def preserve_state(context: StepContext) -> Iterator[None]:
    """Restore what a forward, a backward or a custom step changes.

    Weights and optimizers are copied only for steps that update by themselves: those of a Task, and
    L-BFGS. A step of a Task may also set weights without an optimizer.
    """
    model, state = context.state.model, context.state
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    hooks, generators = (context.on_backward, context.after_first_backward), context.generators
    is_seeded = generators.seeded
    updates = context.custom_update is not None
    snapshots: list[OptimizerSnapshot | WeightSnapshot] = []
    if updates:
        snapshots += [saved_optimizer(optimizer) for optimizer in state.optimizers.values()]
        snapshots += [WeightSnapshot(find_followers(model, state.optimizers.values()))]
    scale: dict[str, Any] = state.scaler.state_dict()
    with ExitStack() as stack:
        stack.enter_context(preserve_torch_rng(context.randomness.device))
        seed_loading(derive_seed("check", 0))
        stack.enter_context(context.train_modes.use())
        stack.enter_context(preserve_buffers(model, context.loss.module, writes=context.writes))
        codes = context.attributes.codes if context.attributes is not None else {"model": model}
        stack.enter_context(preserve_attributes(*codes.values()))
        stack.enter_context(disable_compile(model))
        stack.enter_context(_without_hooks(*state.optimizers.values()))
        for schedule in state.schedules.values():
            stack.enter_context(schedule.preserve())
        context.on_backward, context.after_first_backward = [], None
        generators.seeded = True  # the step may be the first of a process
        try:
            yield
        finally:
            (context.on_backward, context.after_first_backward), generators.seeded = (
                hooks,
                is_seeded,
            )
            pop_logged()
            for snapshot in snapshots:
                snapshot.restore()
            if updates:
                state.scaler.load_state_dict(scale)
                context.strategy.reset_guard()
            for parameter, grad in grads:
                parameter.grad = grad
