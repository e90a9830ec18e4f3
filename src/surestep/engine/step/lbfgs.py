"""The update of an optimizer that evaluates the batch again and again within a step: L-BFGS."""

from typing import Any

import torch
from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.parallel.nonfinite_guard import all_finite
from surestep.engine.step.train_step import StepContext, UpdateResult, forward_backward
from surestep.engine.step_outcome import GradNorm, StepOutcome


def lbfgs_update(parts: StepContext, batch: Batch, divisor: float, rate: float) -> UpdateResult:
    """Move the parameters by a search over the batch, or not at all.

    Every evaluation goes over the same micro-batches with the same items and seeds. One that is
    not finite undoes the search; loss and norms of it are returned then, else those of the first.
    """
    with parts.generators.preserved():
        return _search(parts, batch, divisor, rate)


def _search(parts: StepContext, batch: Batch, divisor: float, rate: float) -> UpdateResult:
    loss_sum, logged = forward_backward(parts, batch, divisor)
    for watch in parts.on_backward:
        watch(parts.state)
    norms = parts.strategy.clip_grad_norm()
    optimizer: Any = parts.strategy.optimizer
    for group, peak in zip(optimizer.param_groups, parts.peak_rates, strict=True):
        group["lr"] = peak * rate
    kept = OptimizerSnapshot(optimizer)
    known = [(loss_sum, norms)]  # the first evaluation is done: its gradients are there

    def closure() -> Tensor:
        value, measured = known.pop() if known else _evaluate(parts, batch, divisor)
        if not all_finite(value, measured.total):
            raise _NotFiniteError(value, measured)
        return value / divisor

    try:
        optimizer.step(closure)
    except _NotFiniteError as met:
        kept.restore()
        value, measured = met.args
        return UpdateResult(
            StepOutcome(False, nonfinite=True), measured, value, logged, batch.items
        )
    return UpdateResult(StepOutcome(True), norms, loss_sum, logged, batch.items)


class _NotFiniteError(Exception):
    """An evaluation was not finite; its arguments are the sum of losses and the norms."""


def _evaluate(parts: StepContext, batch: Batch, divisor: float) -> tuple[Tensor, GradNorm]:
    loss_sum, _ = forward_backward(parts, batch, divisor)
    return loss_sum, parts.strategy.clip_grad_norm()


class OptimizerSnapshot:
    """The parameters and the state of an optimizer, to be put back."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self.weights = [each.detach().clone() for each in self.parameters]
        self.state = {each: _copy(slots) for each, slots in optimizer.state.items()}

    @torch.no_grad()
    def restore(self) -> None:
        """Put both back."""
        torch._foreach_copy_(self.parameters, self.weights)
        self.optimizer.state.clear()
        self.optimizer.state.update(self.state)


def _copy(slots: dict[str, Any]) -> dict[str, Any]:
    """Copy what a search changes in place: tensors, and lists, whose tensors it only replaces."""
    return {
        name: value.clone()
        if isinstance(value, Tensor)
        else list(value)
        if isinstance(value, list)
        else value
        for name, value in slots.items()
    }
