"""The methods of a step in one process, which every strategy has."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from surestep.base.errors import TaskError
from surestep.engine import private
from surestep.engine.batch import Batch
from surestep.engine.device import sum_dtype
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.losses.base import HALF, Loss
from surestep.engine.model.precision import place_model
from surestep.engine.optim.fused_adamw import FusedAdamW
from surestep.engine.optim.param_roles import sparse_embeddings
from surestep.engine.parallel.clipping import clip_gradients
from surestep.engine.parallel.guards import DeviceGuard, HostGuard
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State, trainable_parameters
from surestep.engine.step_outcome import Gradients, GradNorm, StepOutcome

NO_GRADIENT = (
    "The loss does not depend on any trained parameter. Look for detach(), .data, numpy or no_grad "
    "on the way from the model to the loss."
)
NO_GRADIENTS = (
    "No parameter got a gradient in this step: the loss does not depend on the model. Look for "
    "detach(), .data, numpy or no_grad on the way to the loss."
)
NOTHING: AbstractContextManager[Any] = nullcontext()


class LossGradient(NamedTuple):
    """The gradient that a backward pass begins with, and the number that it has, ()."""

    value: float
    tensor: Tensor


class Strategy:
    """The base class of strategies: the methods of a step, as they are in one process.

    An instance belongs to one optimizer. Strategies differ by class attributes and methods.

    Args:
        plan: the Plan of the run.
        state: the state, with the model and the optimizers on their device.
        world: the processes that share a step.
        name: the optimizer, as in `state.optimizers`.

    Attributes:
        shares_step: several processes can share a step.
        needs_ranks: it makes no sense in one process.
        takes: the options of `parallel.`, without this prefix, that not every strategy has.
        extra: the optional extra of surestep that it needs; "" if none.
        copies_model: every rank has the full model and optimizer state, which are the same on all.
        gathers_blocks: parameters are sharded, and hooks gather them one block at a time.
        has_param_grads: the gradients of a step can be read from `Parameter.grad`.
        runs_manual_steps: it can run steps that the Task or the optimizer computes itself.
        reads_each_step: the host must know the loss and the norm before a step.
        allows_warm_up: a forward and backward can run before the first step and be undone.
        world: the processes that share a step.
        module: what a forward calls.
        optimizer: the optimizer.
        parameters: those of the optimizer.
        cleared: tensors whose gradients are cleared when a step begins.
    """

    shares_step = False
    needs_ranks = False
    takes: tuple[str, ...] = ()
    extra = ""
    copies_model = True
    gathers_blocks = False
    has_param_grads = True
    runs_manual_steps = True
    reads_each_step = False
    allows_warm_up = True
    step: Callable[[Tensor, Tensor], StepOutcome]  # (loss_sum, grad_norm): updates the parameters
    unscale: Callable[[], None]  # removes the loss scale from the gradients

    def __init__(
        self, plan: Plan, state: State, world: Communicator = ALONE, name: str = WHOLE
    ) -> None:
        self.world = world
        self.module: nn.Module = state.model
        self.optimizer = state.optimizers[name]
        held = {
            id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]
        }
        named = {
            key: parameter
            for key, parameter in trainable_parameters(state.model).items()
            if id(parameter) in held
        }
        self.names = list(named)
        self.parameters = self.cleared = list(named.values())
        self.max_norm = plan.max_grad_norm
        self.clip_value = plan.clip_value
        self.scaler = state.scaler
        self.sparse = bool(sparse_embeddings(state.model))
        self.alike = (
            len({(parameter.dtype, parameter.device) for parameter in self.parameters}) == 1
        )
        self.guard = (
            DeviceGuard(self.optimizer)
            if plan.guard == "device"
            else HostGuard(self.optimizer, self.scaler)
        )
        self.step = self.guard.step
        self.unscale = partial(self.scaler.unscale_, self.optimizer)
        self.loss_gradients: dict[torch.dtype, LossGradient] = {}

    @classmethod
    def label(cls, plan: Plan) -> str:
        """Return the strategy's name for the first line of a run.

        Args:
            plan: the Plan of the run.
        """
        return str(plan.parallel_strategy)

    @classmethod
    def prepare_model(cls, model: nn.Module, plan: Plan) -> nn.Module:
        """Return the model on its device, as the ranks have it, before it has an optimizer.

        Args:
            model: the model of the Task.
            plan: the Plan of the run.
        """
        return place_model(model, plan)

    @classmethod
    def list_leaves(cls, model: nn.Module) -> list[Tensor]:
        """Return the parameters as the graph of a loss has them, trained or not.

        Args:
            model: as `prepare_model` returns it.
        """
        return [
            p for module in model.modules() for p in module._parameters.values() if p is not None
        ]

    @classmethod
    def make_optimizer(cls, plan: Plan, groups: Any) -> torch.optim.Optimizer | None:
        """Return the strategy's own implementation of the Plan's optimizer; None: use torch's.

        Args:
            plan: the Plan of the run, or that of one of several optimizers.
            groups: parameter groups, as torch's optimizers take them.
        """
        if (plan.optim_name, plan.optim_implementation) != ("adamw", "fused"):
            return None
        assert plan.optim_lr is not None
        return FusedAdamW(groups, lr=plan.optim_lr, **plan.optim_options, fused=True)

    def count_items(self, batch: Batch, loss: Loss) -> Batch:
        """Return the batch with the items of all ranks: here, the batch itself.

        Args:
            batch: the micro-batches and the items of this rank.
            loss: the loss that the items are of.
        """
        return batch

    def finish_backward(self, gradients: Gradients) -> Gradients:
        """Return the gradients of all ranks, after the last backward of a step.

        Args:
            gradients: loss, items and logged values of this rank's backward passes; the gradients
                themselves are in `.grad`.
        """
        return gradients

    def reduce_loss(self, loss_sum: Tensor) -> Tensor:
        """Return the loss of all ranks, (): here, the loss itself.

        Args:
            loss_sum: the loss of this rank, summed over its items, ().
        """
        return loss_sum

    def reduce_grads(self) -> None:
        """Do nothing: no other rank has gradients."""

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Return the context of a forward and backward pass: here, one that does nothing.

        Args:
            when: this is the last micro-batch of the step, so gradients are summed over the ranks.
        """
        return NOTHING

    def backward(self, loss_sum: Tensor, items: float) -> None:
        """Go backward from 1 / items: a division of the loss would cost another node.

        `torch.full` fills on the device; making the tensor from a number would wait for a copy.

        Args:
            loss_sum: the loss of a micro-batch, summed over its items, ().
            items: what the loss is divided by: the items of the global batch, or 1 for a loss that
                is declared a sum.

        Raises:
            TaskError: the loss depends on no trained parameter.
        """
        if not loss_sum.requires_grad:
            raise TaskError(NO_GRADIENT)
        value, start = 1 / items, self.loss_gradients.get(loss_sum.dtype)
        if start is None or start.value != value:
            start = self.make_loss_gradient(loss_sum, value)
        run = private.run_backward if type(loss_sum) is Tensor else torch.autograd.backward
        run((loss_sum,), (self.scaler.scale(start.tensor),))

    def make_loss_gradient(self, loss_sum: Tensor, value: float) -> LossGradient:
        """Return the gradient of a loss, made once for each dtype.

        Args:
            loss_sum: the loss, which has the dtype and the device.
            value: the gradient of the loss; most steps have the same.
        """
        if loss_sum.dtype not in self.loss_gradients:
            tensor = torch.full((), value, dtype=loss_sum.dtype, device=loss_sum.device)
            self.loss_gradients[loss_sum.dtype] = LossGradient(value, tensor)
        self.fill_loss_gradients(value)
        return self.loss_gradients[loss_sum.dtype]

    def fill_loss_gradients(self, value: float) -> None:
        """Fill the gradients that backward passes begin with, where they are.

        Args:
            value: the gradient of the next loss.
        """
        for dtype, start in self.loss_gradients.items():
            if start.value != value:
                self.loss_gradients[dtype] = LossGradient(value, start.tensor.fill_(value))

    def clip_grad_norm(self) -> GradNorm:
        """Do what torch.nn.utils.clip_grad_norm_ does, bit for bit, and keep each norm.

        The norms of 16-bit gradients that are not clipped are in fp32.

        The kernels are called without torch's sorting by device and dtype: 25 µs against 54.

        Returns:
            The norms before clipping, on the device; reading them waits for the device.

        Raises:
            TaskError: no parameter has a gradient.

        Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
        """
        names, grads = self.names, []
        for parameter in self.parameters:
            if parameter.grad is not None:
                grads.append(parameter.grad)
        if self.sparse:
            grads = [
                _values(parameter) for parameter in self.parameters if parameter.grad is not None
            ]
        if len(grads) < len(names):
            pairs = zip(names, self.parameters, strict=True)
            names = [name for name, parameter in pairs if parameter.grad is not None]
            if not grads:
                raise TaskError(NO_GRADIENTS)
        # A norm in fp16 is at most 65,504; if nothing is clipped by it, it is computed in fp32.
        widen = self.max_norm is None and any(grad.dtype in HALF for grad in grads)
        if self.alike:
            norms = torch.stack(private.foreach_norm(grads, 2, torch.float32 if widen else None))
            total = torch.linalg.vector_norm(norms)
        elif widen:
            norms = self.measure_norms(grads)
            total = torch.linalg.vector_norm(norms)
        else:
            device = grads[0].device
            single = [get_total_norm([grad]).to(device, sum_dtype(device)) for grad in grads]
            norms, total = torch.stack(single), get_total_norm(grads)
        clip_gradients(grads, total, self.max_norm, self.clip_value, is_uniform=self.alike)
        return GradNorm(total, norms, names)

    def measure_norms(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the norm of each tensor, (tensors,), on the device; all ranks call it together.

        Args:
            tensors: parameters, or tensors of their shapes; if they are sharded, the shards of this
                rank.
        """
        device, wide = tensors[0].device, (torch.float64, torch.complex128)
        values = [tensor.float() if tensor.dtype in HALF else tensor for tensor in tensors]
        dtype = torch.float64 if any(value.dtype in wide for value in values) else torch.float32
        return torch.stack([norm.to(device, dtype) for norm in private.foreach_norm(values)])

    def reset_guard(self) -> None:
        """Allow steps again after one that was not finite."""
        if isinstance(self.guard, DeviceGuard):
            self.guard.nonfinite = torch.zeros_like(self.guard.nonfinite)

    def leave(self) -> None:
        """Remove wrappers and hooks from the model, when the session closes."""


def _values(parameter: Tensor) -> Tensor:
    """Return the values of a gradient, without copying; rows that it has twice are summed first."""
    grad = parameter.grad
    assert grad is not None
    if not grad.is_sparse:
        return grad
    parameter.grad = grad = grad.coalesce()
    return grad._values()
