"""What every way of sharing a step has in common: each rank sees its share of the batch."""

import torch.distributed as dist
from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.losses.base import Loss
from surestep.engine.parallel.single import SingleProcessStrategy
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State


class DistributedStrategy(SingleProcessStrategy):
    """The verbs of a step whose gradients torch adds up over ranks."""

    def __init__(self, plan: Plan, state: State, world: Communicator, name: str = WHOLE) -> None:
        super().__init__(plan, state, name)
        self.world = world

    def count_items(self, batch: Batch, loss: Loss) -> Batch:
        """Add up the items of all ranks, over the host's group."""
        items, *part_items = self.world.exchange([batch.items, *batch.part_items])
        return batch._replace(items=items, part_items=tuple(part_items))

    def reduce_loss(self, loss_sum: Tensor) -> Tensor:
        """Add up the loss of all ranks, on the device; one that is not finite is so for all."""
        total = loss_sum.double()
        dist.all_reduce(total)
        return total.to(loss_sum.dtype)
