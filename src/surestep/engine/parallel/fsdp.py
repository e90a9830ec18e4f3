"""Many processes that hold a part of every parameter each: FSDP2, torch's `fully_shard`.

A block's parameters are gathered right before it is used and let go behind it; its gradients are
added up over the ranks, each of which keeps its part. Every forward gathers, so that all ranks go
forward equally often, in evaluations too.

Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
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
from torch.distributed.utils import _sync_params_and_buffers

from surestep.base.errors import TaskError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.shards import to_local
from surestep.engine.optim.local_shards import local_shards
from surestep.engine.parallel.distributed import DistributedStrategy
from surestep.engine.parallel.meta_init import broadcast_weights, check_filled
from surestep.engine.parallel.single import NO_GRADIENTS, NOTHING
from surestep.engine.parallel.wrap_policy import in_order
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State
from surestep.engine.step_outcome import GradNorm, StepOutcome

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_BUCKET = 250 * 2**20  # bytes of buffers sent at once: DDP's own


def shard_model(model: nn.Module, plan: Plan) -> nn.Module:
    """Cut the parameters of a model over the ranks, in place; block by block to the device.

    Args:
        model: on the host.
        plan: its blocks, and what is cut.
    """
    keeps = plan.parallel_shard == "grad_op"
    how: dict[str, Any] = {
        "mesh": make_mesh(plan),
        "mp_policy": _precision(plan),
        "offload_policy": _offload(plan),
        # None is torch's own: all but the outermost are let go after their forward.
        "reshard_after_forward": False if keeps else None,
    }
    ready = partial(broadcast_weights, device=plan.device) if plan.parallel_meta_init else _nothing
    for norm in _norms(model) if plan.precision in _HALF else ():
        ready(norm)
        fully_shard(norm, **how | {"mp_policy": MixedPrecisionPolicy()})
    for block in in_order(model, plan.parallel_wrap_policy):
        if not isinstance(block, FSDPModule):
            ready(block)
            fully_shard(block, **how)
    ready(model)
    check_filled(model)
    fully_shard(model, **how)
    for part in _cut_modules(model):  # gradients are added up as in one process, not averaged
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    model.register_forward_hook(_let_go)
    return model


def _nothing(_: nn.Module) -> None:
    """Do nothing: each rank has all values."""


def _norms(model: nn.Module) -> list[nn.Module]:
    """Return the normalisation whose weights must be as precise as its running statistics."""
    kind = nn.modules.batchnorm._NormBase
    norms = [each for each in model.modules() if isinstance(each, kind)]
    return [each for each in norms if any(True for _ in each.parameters())]


def make_mesh(plan: Plan) -> DeviceMesh:
    """Return how the ranks stand: in a row, or of hybrid in rows of `parallel.shard_size`."""
    kind, ranks, size = plan.device.type, plan.parallel_ranks, plan.parallel_shard_size
    if plan.parallel_shard == "hybrid":
        return init_device_mesh(kind, (ranks // size, size), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(kind, (ranks,), mesh_dim_names=("shard",))


def _precision(plan: Plan) -> MixedPrecisionPolicy:
    """Gather in half precision where the forward computes in it; gradients are added up in fp32.

    What is cast within the forward is left to autocast, so that it is the same as in one process.
    """
    half = _HALF.get(plan.precision)
    if half is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(half, torch.float32, cast_forward_inputs=False)


def _offload(plan: Plan) -> OffloadPolicy:
    if plan.parallel_offload == "off":
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=plan.device.type != "cpu")


def _let_go(model: nn.Module, *_: object) -> None:
    """Let go what a forward without a backward gathered: it would be stale after the next step."""
    if not torch.is_grad_enabled():
        reshard(model)


def reshard(model: nn.Module) -> None:
    """Let all parameters be parts again, where some are still gathered."""
    for part in _cut_modules(model):
        part.reshard()


def _cut_modules(model: nn.Module) -> list[FSDPModule]:
    return [each for each in model.modules() if isinstance(each, FSDPModule)]


class FSDPStrategy(DistributedStrategy):
    """The verbs of a step on parameters that are cut over the ranks."""

    copies_model = False
    gathers_blocks = True
    runs_manual_steps = False

    def __init__(self, plan: Plan, state: State, world: Communicator, name: str = WHOLE) -> None:
        super().__init__(plan, state, world, name)
        assert isinstance(state.model, FSDPModule)
        self.root: FSDPModule = state.model
        self.keeps = plan.parallel_shard == "grad_op"
        self.device = plan.device
        mesh = mesh_of_params(self.parameters)
        self.group = mesh.get_group(mesh.ndim - 1)
        self.has_buffers = any(True for _ in state.model.buffers())
        self.synced = True
        if plan.optim_implementation != "own":  # of a user's own nobody knows what it looks at
            self.step = self._step_locally

    @classmethod
    def label(cls, plan: Plan) -> str:
        """Return what is sharded too."""
        return f"fsdp {plan.parallel_shard}"

    @classmethod
    def prepare_model(cls, model: nn.Module, plan: Plan) -> nn.Module:
        """Shard the model over the ranks."""
        return shard_model(model, plan)

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Let gradients of all but the last backward stay on their rank.

        What is kept between forward and backward is then kept over the micro-batches too. As with
        DDP, the buffers of the first rank are those of all where gradients are added up.
        """
        if when is not self.synced:
            self.synced = when
            self.root.set_requires_gradient_sync(when)
            if self.keeps:
                self.root.set_reshard_after_backward(when)
        if when and self.has_buffers:
            buffers = list(self.module.buffers())
            all_ranks: Any = dist.group.WORLD
            _sync_params_and_buffers(all_ranks, buffers, _BUCKET, 0)  # sends them as DDP does
        return NOTHING

    def clip_grad_norm(self) -> GradNorm:
        """Measure and clip as one process does: the squares of all parts travel at once."""
        named = [
            (name, each.grad)
            for name, each in zip(self.names, self.parameters, strict=True)
            if each.grad is not None
        ]
        if not named:
            raise TaskError(NO_GRADIENTS)
        names, grads = [name for name, _ in named], [to_local(grad) for _, grad in named]
        squares = torch.stack([each.double() for each in torch._foreach_norm(grads)]).square_()
        squares = squares.to(self.device)
        dist.all_reduce(squares, group=self.group)
        kind = torch.promote_types(grads[0].dtype, torch.float32)
        norms, total = squares.sqrt().to(kind), squares.sum().sqrt().to(kind)
        if self.max_norm is not None:
            factor = torch.clamp(self.max_norm / (total + 1e-6), max=1.0)
            torch._foreach_mul_(grads, factor.to(grads[0].device))
        elif self.clip_value is not None:
            torch._foreach_clamp_min_(grads, -self.clip_value)
            torch._foreach_clamp_max_(grads, self.clip_value)
        return GradNorm(total, norms, names)

    def _step_locally(self, loss_sum: Tensor, grad_norm: Tensor) -> StepOutcome:
        with local_shards(self.optimizer):
            return self.guard.step(loss_sum, grad_norm)


def mesh_of_params(parameters: Sequence[nn.Parameter]) -> DeviceMesh:
    """Return how the ranks stand that hold the parts."""
    part = parameters[0].data
    assert isinstance(part, DTensor)
    return part.device_mesh
