"""The ways in which processes share a step, by the Plan's word for them."""

from torch import nn

from surestep.engine.parallel.ddp import Ddp, synced_batchnorm
from surestep.engine.parallel.single import Single
from surestep.engine.parallel.world import World
from surestep.engine.plan import Plan
from surestep.engine.state import State


def laid_out(model: nn.Module, plan: Plan, world: World) -> nn.Module:
    """Return the model as the ranks hold it, before it is compiled and has an optimizer."""
    return synced_batchnorm(model) if plan.parallel_sync_batchnorm else model


def verbs(plan: Plan, state: State, name: str, world: World) -> Single:
    """Return the verbs of a step for the optimizer of a name.

    A copy of the model in each process, and a process alone, are what there is.
    """
    if plan.parallel_kind == "ddp":
        return Ddp(plan, state, world, name)
    return Single(plan, state, name)
