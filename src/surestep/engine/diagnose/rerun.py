"""Take the forward and backward of a step again, and leave everything as it was."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.diagnose.cause import has_nonfinite
from surestep.engine.metrics import base as metrics
from surestep.engine.model.compile import disable_compile
from surestep.engine.model.preserve import preserve_buffers, preserve_modes
from surestep.engine.rng import preserve_torch_rng, seed_loading
from surestep.engine.step.multi_optimizer import OptimizerSnapshot
from surestep.engine.step.train_step import StepContext, compute_and_apply, forward_backward


class RerunResult(NamedTuple):
    """What came of it: what is judged, and which of that is not finite.

    Attributes:
        loss_sum: the loss summed over its items, ().
        bad: the loss and the gradients that are not finite, by name; "" is the loss.
    """

    loss_sum: Tensor
    bad: dict[str, Tensor]


@contextmanager
def preserve_state(parts: StepContext) -> Iterator[None]:
    """Put back what a forward, a backward or a step of the user's own moves.

    Weights and optimizers are copied only where a step moves by itself: a Task's own, or L-BFGS.
    """
    model, state = parts.state.model, parts.state
    grads = [(each, each.grad) for each in model.parameters()]
    watchers = parts.on_backward
    optimizers = (
        []
        if parts.update is compute_and_apply
        else [OptimizerSnapshot(o) for o in state.optimizers.values()]
    )
    scale: dict[str, Any] = state.scaler.state_dict()
    device = parts.randomness.device
    with ExitStack() as stack:
        stack.enter_context(preserve_torch_rng(device))
        seed_loading(0)
        stack.enter_context(preserve_modes(model.modules()))
        stack.enter_context(preserve_buffers(model, parts.loss.module))
        stack.enter_context(disable_compile(model))
        for each in optimizers:
            each.keep()
        for module, training in parts.train_modes.wanted:
            module.training = training
        parts.on_backward = []
        try:
            yield
        finally:
            parts.on_backward = watchers
            metrics.pop_logged()
            for each in optimizers:
                each.restore()
            if optimizers:
                state.scaler.load_state_dict(scale)
                parts.strategy.reset_guard()
            for parameter, grad in grads:
                parameter.grad = grad


def rerun_step(parts: StepContext, batch: Batch, divisor: float) -> RerunResult:
    """Take the step of a batch that is on the device and transformed, up to its gradients.

    A step that moves by itself is taken whole; see `untouched`.
    """
    if parts.update is compute_and_apply:
        loss_sum, _ = forward_backward(parts, batch, divisor)
        named = dict(zip(_names(parts), parts.strategy.parameters, strict=True))
        found = {"": loss_sum}
        found |= {name: each.grad for name, each in named.items() if each.grad is not None}
    else:
        rate = parts.lr_factor(parts.state.progress.steps_taken)
        made = parts.update(parts, batch, divisor, rate)
        assert made.loss_sum is not None
        loss_sum, found = made.loss_sum, {"": made.loss_sum}
        if made.norms is not None:
            found["gradients"] = made.norms.total
    return RerunResult(
        loss_sum, {name: each for name, each in found.items() if has_nonfinite(each)}
    )


def _names(parts: StepContext) -> list[str]:
    names = {id(each): name for name, each in parts.state.model.named_parameters()}
    return [names[id(each)] for each in parts.strategy.parameters]
