"""Many processes with a copy of the model each, whose gradients torch averages: DDP.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from surestep.engine.parallel.ranked import Ranked
from surestep.engine.parallel.single import NOTHING
from surestep.engine.parallel.world import World
from surestep.engine.plan import Plan
from surestep.engine.state import WHOLE, State


class Ddp(Ranked):
    """The verbs of a step on a copy of the model in each process."""

    def __init__(self, plan: Plan, state: State, world: World, name: str = WHOLE) -> None:
        super().__init__(plan, state, world, name)
        self.module = self.wrapped(state.model, plan)
        self._learns_graph = plan.parallel_static_graph

    def wrapped(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Return the model with what adds up its gradients."""
        on_gpu = plan.device.type == "cuda"
        return DistributedDataParallel(
            model,
            device_ids=[plan.device] if on_gpu else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=plan.parallel_find_unused_parameters,
            static_graph=plan.parallel_static_graph,
        )

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Let gradients of all but the last backward stay on their rank."""
        if self._learns_graph:
            # DDP learns a static graph from its first backward, and fails if that is not synced.
            # It is the one that settles DDP, whose gradients nobody uses.
            self._learns_graph = False
            return NOTHING
        return NOTHING if when else self.unsynced()

    def unsynced(self) -> AbstractContextManager[Any]:
        """Return the context of a backward whose gradients stay on their rank."""
        module: Any = self.module
        context: AbstractContextManager[Any] = module.no_sync()
        return context

    def backward(self, loss_sum: Tensor, items: float) -> None:
        """Go backward from ranks / items, since torch divides by the ranks."""
        super().backward(loss_sum, items / self.world.size)


def synced_batchnorm(model: nn.Module) -> nn.Module:
    """Return the model with BatchNorms that take their statistics over the samples of all ranks.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """
    convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
    converted: nn.Module = convert(model)
    return converted
