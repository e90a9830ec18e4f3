"""The ways in which processes share a step, by the Plan's word for them."""

from torch import nn

from surestep.engine.parallel.accelerated import Accelerated
from surestep.engine.parallel.ddp import Ddp, synced_batchnorm
from surestep.engine.parallel.deepspeed import DeepSpeed
from surestep.engine.parallel.single import Single
from surestep.engine.parallel.world import World
from surestep.engine.plan import Plan
from surestep.engine.precision import placed
from surestep.engine.state import State


def laid_out(model: nn.Module, plan: Plan) -> nn.Module:
    """Return the model as the ranks hold it, on the device, before it has an optimizer."""
    if plan.parallel_sync_batchnorm:
        model = synced_batchnorm(model)
    if plan.parallel_kind == "fsdp":
        from surestep.engine.parallel.fsdp import sharded  # half a second to import

        return sharded(model, plan)
    return placed(model, plan)


def verbs(plan: Plan, state: State, name: str, world: World) -> Single:
    """Return the verbs of a step for the optimizer of a name."""
    if plan.parallel_kind == "accelerate":
        return Accelerated(plan, state, world, name)
    if plan.parallel_kind == "ddp":
        return Ddp(plan, state, world, name)
    if plan.parallel_kind == "fsdp":
        from surestep.engine.parallel.fsdp import Fsdp

        return Fsdp(plan, state, world, name)
    if plan.parallel_kind == "deepspeed":
        return DeepSpeed(plan, state, world, name)
    return Single(plan, state, name)
