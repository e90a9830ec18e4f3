"""Each process has a shard of every parameter: FSDP2, torch's `fully_shard`.

A block's parameters are gathered right before it is used and freed after it; its gradients are
summed over the ranks, and each rank keeps its shard. Every forward gathers, so all ranks run the
same number of forward passes, in evaluations too.

Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from surestep.base.errors import ParallelError, TaskError
from surestep.engine import private
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.shards import is_sharded, to_local
from surestep.engine.losses.base import HALF
from surestep.engine.optim.local_shards import local_shards
from surestep.engine.parallel.base import NO_GRADIENTS, NOTHING
from surestep.engine.parallel.clipping import clip_gradients
from surestep.engine.parallel.distributed import DistributedStrategy
from surestep.engine.parallel.manual_allreduce import broadcast_module
from surestep.engine.parallel.wrap_policy import in_order
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State
from surestep.engine.step_outcome import GradNorm, StepOutcome

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class FSDPStrategy(DistributedStrategy):
    """The methods of a step on parameters that are sharded over the ranks."""

    copies_model = False
    gathers_blocks = True
    takes = ("shard", "wrap_policy", "meta_init", "offload")
    runs_manual_steps = False

    def __init__(self, plan: Plan, state: State, world: Communicator, name: str = WHOLE) -> None:
        super().__init__(plan, state, world, name)
        assert isinstance(state.model, FSDPModule)
        self.root: FSDPModule = state.model
        self.keeps_gathered = plan.parallel_shard == "grad_op"
        self.device = plan.device
        shard: Any = self.parameters[0].data
        assert isinstance(shard, DTensor)
        self.group = shard.device_mesh.get_group(shard.device_mesh.ndim - 1)
        self.has_buffers = any(True for _ in state.model.buffers())
        self._is_synced = True
        if plan.optim_implementation != "own":  # a custom optimizer may read anything
            self.step = self._step_locally

    @classmethod
    def label(cls, plan: Plan) -> str:
        """Return the strategy with what is sharded."""
        return f"fsdp {plan.parallel_shard}"

    @classmethod
    def prepare_model(cls, model: nn.Module, plan: Plan) -> nn.Module:
        """Shard the parameters over the ranks, in place, block by block on the device."""
        half, device = _HALF.get(plan.precision), plan.device
        # Only what the forward computes in is cast here: autocast does the rest, as in one process.
        precision = MixedPrecisionPolicy()
        if half is not None:
            precision = MixedPrecisionPolicy(half, torch.float32, cast_forward_inputs=False)
        offload = OffloadPolicy()
        if plan.parallel_offload != "off":
            offload = CPUOffloadPolicy(pin_memory=device.type != "cpu")
        options: dict[str, Any] = {
            "mesh": _make_mesh(plan),
            "mp_policy": precision,
            "offload_policy": offload,
            # None is torch's default: all but the root are freed after their forward.
            "reshard_after_forward": False if plan.parallel_shard == "grad_op" else None,
        }

        def shard(module: nn.Module, **more: Any) -> None:
            if plan.parallel_meta_init:
                _broadcast_weights(module, device)
            fully_shard(module, **options | more)

        if half is not None:  # norms must be as precise as their running statistics
            for module in list(model.modules()):
                if isinstance(module, nn.modules.batchnorm._NormBase) and [*module.parameters()]:
                    shard(module, mp_policy=MixedPrecisionPolicy())
        for block in in_order(model, plan.parallel_wrap_policy):
            if not isinstance(block, FSDPModule):
                shard(block)
        if plan.parallel_meta_init:
            _broadcast_weights(model, device)
        _check_no_meta_tensors(model)
        fully_shard(model, **options)
        for part in _sharded_modules(model):  # gradients are summed as in one process, not averaged
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        model.register_forward_hook(_free_after_evaluation)
        return model

    @classmethod
    def list_leaves(cls, model: nn.Module) -> list[Tensor]:
        """Return the gathered parameters too: the shards are not in the graph."""
        leaves = super().list_leaves(model)
        for part in _sharded_modules(model):
            part.unshard()
            leaves += super().list_leaves(part)  # type: ignore[arg-type]  # it is a module too
            part.reshard()
        return leaves

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Keep the gradients of all but the last backward on their rank.

        With grad_op, the gathered parameters are kept over the micro-batches too. As with DDP, the
        buffers of rank 0 become those of all when gradients are summed.
        """
        if when is not self._is_synced:
            self._is_synced = when
            self.root.set_requires_gradient_sync(when)
            if self.keeps_gathered:
                self.root.set_reshard_after_backward(when)
        if when and self.has_buffers:
            broadcast_module(self.module, weights=False)
        return NOTHING

    def clip_grad_norm(self) -> GradNorm:
        """Measure and clip as one process does: the squares of all shards are summed at once."""
        with_grad = [
            (name, parameter.grad)
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if parameter.grad is not None
        ]
        if not with_grad:
            raise TaskError(NO_GRADIENTS)
        names, grads = [name for name, _ in with_grad], [to_local(grad) for _, grad in with_grad]
        squares = self._sum_squares(grads)
        dtype = torch.promote_types(grads[0].dtype, torch.float32)
        norms, total = squares.sqrt().to(dtype), squares.sum().sqrt().to(dtype)
        clip_gradients(grads, total, self.max_norm, self.clip_value)
        return GradNorm(total, norms, names)

    def measure_norms(self, tensors: Sequence[Tensor]) -> Tensor:
        """Sum the squares of all shards."""
        return self._sum_squares(tensors).sqrt()

    def _sum_squares(self, shards: Sequence[Tensor]) -> Tensor:
        """Return the sum of squares of each tensor over the ranks, (tensors,), on the device."""
        wide = torch.float32 if all(shard.dtype in HALF for shard in shards) else None
        norms = [norm.double() for norm in private.foreach_norm(list(shards), 2, wide)]
        squares = torch.stack(norms).square_().to(self.device)
        dist.all_reduce(squares, group=self.group)
        return squares

    def _step_locally(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        with local_shards(self.optimizer):
            return self.guard.step(loss_sum, grad_norm)


def _make_mesh(plan: Plan) -> DeviceMesh:
    """Return the mesh of the ranks: one row, or with hybrid rows of `parallel.shard_size`."""
    device, ranks, size = plan.device.type, plan.parallel_ranks, plan.parallel_shard_size
    if plan.parallel_shard != "hybrid":
        return init_device_mesh(device, (ranks,), mesh_dim_names=("shard",))
    names = ("replicate", "shard")
    return init_device_mesh(device, (ranks // size, size), mesh_dim_names=names)


def _sharded_modules(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _free_after_evaluation(model: nn.Module, *_: object) -> None:
    """Free what a forward without a backward gathered: the next step would make it stale."""
    if not torch.is_grad_enabled():
        for part in _sharded_modules(model):
            part.reshard()


@torch.no_grad()
def _broadcast_weights(module: nn.Module, device: torch.device) -> None:
    """Give all ranks rank 0's tensors of a module, on the device, except for sharded ones.

    The other ranks have only their shapes, on torch's meta device: the values are drawn once, by
    the code that draws them in one process. A tensor that is shared stays shared.
    """
    sent: dict[int, tuple[Tensor, Tensor]] = {}  # a tensor and its copy, by the tensor's id
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None or is_sharded(tensor):
                    continue
                if id(tensor) not in sent:
                    filled = tensor
                    if tensor.is_meta:
                        filled = torch.empty_like(tensor, device=device)
                        if isinstance(tensor, nn.Parameter):
                            filled = nn.Parameter(filled, requires_grad=tensor.requires_grad)
                    else:
                        tensor.data = tensor.data.to(device)
                    dist.broadcast(filled.data, 0)
                    sent[id(tensor)] = tensor, filled
                tensors[name] = sent[id(tensor)][1]  # type: ignore[assignment]  # the same type


def _check_no_meta_tensors(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                raise ParallelError(
                    f"{name + '.' if name else ''}{key} is a tensor that is neither a parameter "
                    "nor a buffer, so parallel.meta_init=True cannot send it. Call "
                    f"self.register_buffer({key!r}, ...) in its module, or remove "
                    "parallel.meta_init."
                )
