"""One process."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.nn.utils import get_total_norm

from surestep.base.errors import TaskError
from surestep.engine.batch import Batch
from surestep.engine.distributed.communicator import ALONE
from surestep.engine.losses.base import Loss
from surestep.engine.optim.param_roles import sparse_embeddings
from surestep.engine.parallel.nonfinite_guard import GradScalerGuard, HostGuard
from surestep.engine.parallel.strategy import Named
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State, trainable_parameters
from surestep.engine.step_outcome import GradNorm, StepOutcome

NO_GRADIENT = (
    "The loss does not depend on any trained parameter. Look for detach(), .data, numpy or no_grad "
    "on the way from the model to the loss."
)
NO_GRADIENTS = (
    "No parameter got a gradient in this step: the loss does not depend on the model. Look for "
    "detach(), .data, numpy or no_grad on the way to the loss."
)
NOTHING: AbstractContextManager[Any] = nullcontext()
# torch.autograd.backward without the check that gradients have the shapes of the losses. That check
# imports torch.fx and sympy at its first call: 0.4 s, and 40,000 objects for the garbage collector.
run_backward: Any = partial(
    _engine_run_backward,
    keep_graph=False,
    create_graph=False,
    inputs=(),
    allow_unreachable=True,
    accumulate_grad=True,
)


class SingleProcessStrategy:
    """The verbs of a step in one process, for the optimizer of a name."""

    world = ALONE
    step: Callable[[Tensor, Tensor], StepOutcome]
    unscale: Callable[[], None]

    def __init__(self, plan: Plan, state: State, name: str = WHOLE) -> None:
        self.module: nn.Module = state.model
        self.optimizer = state.optimizers[name]
        held = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        named = {
            key: each for key, each in trainable_parameters(state.model).items() if id(each) in held
        }
        self.names = list(named)
        self.parameters = self.cleared = list(named.values())
        self.max_norm = plan.max_grad_norm
        self.clip_value = plan.clip_value
        self.scaler = state.scaler
        self.sparse = bool(sparse_embeddings(state.model))
        self.alike = len({(each.dtype, each.device) for each in self.parameters}) == 1
        self.guard = _GUARDS[plan.guard](self.optimizer, state.scaler)
        self.step = self.guard.step
        self.unscale = partial(self.scaler.unscale_, self.optimizer)
        self._seeds: dict[torch.dtype, tuple[float, Tensor]] = {}

    def count_items(self, batch: Batch, loss: Loss) -> Batch:
        """Return the batch itself."""
        return batch

    def settle_items(self, items: float, logged: list[Named]) -> tuple[float, list[Named]]:
        """Return both as they are."""
        return items, logged

    def reduce_loss(self, loss_sum: Tensor) -> Tensor:
        """Return the loss itself."""
        return loss_sum

    def reduce_grads(self) -> None:
        """Do nothing: no other rank has gradients."""

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return NOTHING

    def backward(self, loss_sum: Tensor, items: float) -> None:
        """Go backward from 1 / items: a division of the loss would cost another node.

        `torch.full` fills on the device; making the tensor from a number would wait for a copy.
        """
        if not loss_sum.requires_grad:
            raise TaskError(NO_GRADIENT)
        known, seed = self._seeds.get(loss_sum.dtype, (math.nan, loss_sum))
        if known != items:
            seed = torch.full((), 1 / items, dtype=loss_sum.dtype, device=loss_sum.device)
            self._seeds[loss_sum.dtype] = (items, seed)
        run = run_backward if type(loss_sum) is Tensor else torch.autograd.backward
        run((loss_sum,), (self.scaler.scale(seed),))

    def clip_grad_norm(self) -> GradNorm:
        """Do what torch.nn.utils.clip_grad_norm_ does, bit for bit, and keep each norm.

        The kernels are called without torch's sorting by device and dtype: 25 µs against 54.
        Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
        """
        names, grads = self.names, []
        for parameter in self.parameters:
            if parameter.grad is not None:
                grads.append(parameter.grad)
        if self.sparse:
            grads = [_values(each) for each in self.parameters if each.grad is not None]
        if len(grads) < len(names):
            pairs = zip(names, self.parameters, strict=True)
            names = [name for name, parameter in pairs if parameter.grad is not None]
            if not grads:
                raise TaskError(NO_GRADIENTS)
        norms = torch.stack(torch._foreach_norm(grads) if self.alike else _norms(grads))
        total = torch.linalg.vector_norm(norms) if self.alike else get_total_norm(grads)
        if self.max_norm is not None:
            if self.alike:
                factor = torch.add(total, 1e-6).reciprocal_().mul_(self.max_norm).clamp_(max=1.0)
                torch._foreach_mul_(grads, factor)
            else:
                factor = torch.clamp(self.max_norm / (total + 1e-6), max=1.0)
                for grad in grads:
                    grad.mul_(factor)
        elif self.clip_value is not None:
            torch._foreach_clamp_min_(grads, -self.clip_value)
            torch._foreach_clamp_max_(grads, self.clip_value)
        return GradNorm(total, norms, names)

    def reset_guard(self) -> None:
        """Let steps be taken again after one that was not finite."""
        self.guard.recover()

    def leave(self) -> None:
        """Let go of what was put around the model, when the session closes."""


def _values(parameter: Tensor) -> Tensor:
    """Return the values of a gradient; of a sparse one, each row that was looked up once.

    Rows that stand in it twice are added up first: their sum is the gradient. The values are the
    gradient's own memory, so that what clips them clips it.
    """
    grad = parameter.grad
    assert grad is not None
    if not grad.is_sparse:
        return grad
    parameter.grad = grad = grad.coalesce()
    return grad._values()


def _norms(grads: list[Tensor]) -> list[Tensor]:
    """Return the norm of each, as scalars that can be stacked."""
    return [get_total_norm([grad]).to(grads[0].device, torch.float32) for grad in grads]


class DeviceGuard:
    """Decide on the device: from the first value that is not finite on, every step is skipped.

    So the state that the host sees at the next log point is the one before that step. The poison
    is 0 while everything was finite and NaN for ever after: 0 * inf and 0 * NaN are NaN.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.optimizer: Any = optimizer
        device = optimizer.param_groups[0]["params"][0].device
        self.nonfinite = torch.zeros((), device=device)
        self.found_inf = torch.zeros((), device=device)

    def step(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        """Step with torch's own switch: a fused kernel does nothing where found_inf is 1."""
        poison = torch.add(torch.add(self.nonfinite, loss_sum, alpha=0), grad_norm, alpha=0)
        self.nonfinite = poison
        torch.ne(poison, 0, out=self.found_inf)
        self.optimizer.grad_scale = None
        self.optimizer.found_inf = self.found_inf
        self.optimizer.step()
        return StepOutcome(True, poison)

    def recover(self) -> None:
        """Forget the poison."""
        self.nonfinite = torch.zeros_like(self.nonfinite)


_GUARDS: dict[str, type[DeviceGuard | HostGuard | GradScalerGuard]] = {
    "sticky": DeviceGuard,
    "reading": HostGuard,
    "scaled": GradScalerGuard,
    "searching": HostGuard,  # which the search asks nothing: it steps by itself
}
