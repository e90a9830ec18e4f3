"""The ways in which processes share a step, by the Plan's word for them."""

from torch import nn

from surestep.engine.distributed.communicator import Communicator
from surestep.engine.model.precision import place_model
from surestep.engine.parallel.accelerate import AccelerateStrategy
from surestep.engine.parallel.ddp import DDPStrategy, convert_sync_batchnorm
from surestep.engine.parallel.deepspeed.strategy import DeepSpeedStrategy
from surestep.engine.parallel.single import SingleProcessStrategy
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State


def prepare_model(model: nn.Module, plan: Plan) -> nn.Module:
    """Return the model as the ranks hold it, on the device, before it has an optimizer."""
    if plan.parallel_sync_batchnorm:
        model = convert_sync_batchnorm(model)
    if plan.parallel_strategy == "fsdp":
        from surestep.engine.parallel.fsdp import shard_model  # half a second to import

        return shard_model(model, plan)
    return place_model(model, plan)


def make_strategy(
    plan: Plan, state: State, name: str, world: Communicator
) -> SingleProcessStrategy:
    """Return the verbs of a step for the optimizer of a name."""
    if plan.parallel_strategy == "accelerate":
        return AccelerateStrategy(plan, state, world, name)
    if plan.parallel_strategy == "ddp":
        return DDPStrategy(plan, state, world, name)
    if plan.parallel_strategy == "fsdp":
        from surestep.engine.parallel.fsdp import FSDPStrategy

        return FSDPStrategy(plan, state, world, name)
    if plan.parallel_strategy == "deepspeed":
        return DeepSpeedStrategy(plan, state, world, name)
    return SingleProcessStrategy(plan, state, name)
