"""The update of L-BFGS, which evaluates the batch repeatedly within a step."""

import copy
from typing import Any

from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.parallel.guards import all_finite
from surestep.engine.rng import preserve_globals
from surestep.engine.step.multi_optimizer import OptimizerSnapshot
from surestep.engine.step.train_step import StepContext, UpdateResult, forward_backward
from surestep.engine.step_outcome import GradNorm, StepOutcome


class _NonFiniteEvaluation(Exception):
    """The loss or a gradient is not finite; the arguments are loss_sum and norms."""


def lbfgs_update(context: StepContext, batch: Batch, divisor: float) -> UpdateResult:
    """Update the parameters by a search over the batch, or not at all.

    Every evaluation uses the same micro-batches with the same items and seeds. If one is not
    finite, the search is undone, and its loss and norms are returned; otherwise those of the first.
    """
    with preserve_globals():

        def evaluate() -> tuple[Tensor, GradNorm]:
            loss_sum = forward_backward(context, batch, divisor).loss_sum
            return loss_sum, context.strategy.clip_grad_norm()

        def closure() -> Tensor:
            loss_sum, norms = evaluated.pop() if evaluated else evaluate()
            if not all_finite(loss_sum, norms.total):
                raise _NonFiniteEvaluation(loss_sum, norms)
            return loss_sum / divisor

        loss_sum, _, logged = forward_backward(context, batch, divisor)
        context.end_first_backward()
        for hook in context.on_backward:
            hook(context.state)
        norms = context.strategy.clip_grad_norm()
        evaluated = [(loss_sum, norms)]  # the gradients of the first evaluation are already there
        optimizer: Any = context.strategy.optimizer
        context.schedule.write(context.state.progress.steps_taken)
        snapshot = OptimizerSnapshot(optimizer)
        snapshot.save(copy_value=copy.copy)  # the history is lists of tensors that never change
        try:
            optimizer.step(closure)
        except _NonFiniteEvaluation as error:
            snapshot.restore()
            loss_sum, norms = error.args
            return UpdateResult(StepOutcome(False, nonfinite=True), norms, loss_sum, logged)
        return UpdateResult(StepOutcome(True), norms, loss_sum, logged)
