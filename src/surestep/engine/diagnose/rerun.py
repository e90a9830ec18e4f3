"""Take the forward and backward pass of a step again, and restore everything afterwards."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.diagnose.nonfinite_tracker import has_nonfinite
from surestep.engine.metrics import base as metrics
from surestep.engine.model.compile import disable_compile
from surestep.engine.model.preserve import preserve_buffers, preserve_modes
from surestep.engine.rng import preserve_torch_rng, seed_loading
from surestep.engine.step.multi_optimizer import OptimizerSnapshot
from surestep.engine.step.train_step import StepContext, forward_backward


class RerunResult(NamedTuple):
    """The loss summed over its items, (), and what is not finite by name; "" is the loss."""

    loss_sum: Tensor
    bad: dict[str, Tensor]


@contextmanager
def preserve_state(parts: StepContext) -> Iterator[None]:
    """Restore what a forward, a backward or a custom step changes.

    Weights and optimizers are copied only for steps that update by themselves: those of a Task, and
    L-BFGS.
    """
    model, state = parts.state.model, parts.state
    grads = [(parameter, parameter.grad) for parameter in model.parameters()]
    hooks = parts.on_backward
    updates = parts.custom_update is not None
    optimizers = (
        [OptimizerSnapshot(optimizer) for optimizer in state.optimizers.values()] if updates else []
    )
    scale: dict[str, Any] = state.scaler.state_dict()
    with ExitStack() as stack:
        stack.enter_context(preserve_torch_rng(parts.randomness.device))
        seed_loading(0)
        stack.enter_context(preserve_modes(model.modules()))
        stack.enter_context(preserve_buffers(model, parts.loss.module))
        stack.enter_context(disable_compile(model))
        for snapshot in optimizers:
            snapshot.save()
        for module, training in parts.train_modes.wanted:
            module.training = training
        parts.on_backward = []
        try:
            yield
        finally:
            parts.on_backward = hooks
            metrics.pop_logged()
            for snapshot in optimizers:
                snapshot.restore()
            if updates:
                state.scaler.load_state_dict(scale)
                parts.strategy.reset_guard()
            for parameter, grad in grads:
                parameter.grad = grad


def rerun_step(parts: StepContext, batch: Batch, divisor: float) -> RerunResult:
    """Take a step on a batch that is on the device and transformed, up to its gradients.

    A step that updates by itself is taken as a whole; see `preserve_state`.
    """
    if parts.custom_update is None:
        loss_sum = forward_backward(parts, batch, divisor).loss_sum
        names = {id(parameter): name for name, parameter in parts.state.model.named_parameters()}
        parameters = parts.strategy.parameters
        seen = {
            names[id(parameter)]: parameter.grad
            for parameter in parameters
            if parameter.grad is not None
        }
        seen = {"": loss_sum, **seen}
    else:
        rate = parts.lr_factor(parts.state.progress.steps_taken)
        update = parts.custom_update(parts, batch, divisor, rate)
        assert update.loss_sum is not None
        loss_sum, seen = update.loss_sum, {"": update.loss_sum}
        if update.norms is not None:
            seen["gradients"] = update.norms.total
    bad = {name: tensor for name, tensor in seen.items() if has_nonfinite(tensor)}
    return RerunResult(loss_sum, bad)
