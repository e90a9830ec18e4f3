"""What every way of sharing a step has in common: each rank sees its share of the batch."""

import torch.distributed as dist
from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.losses.base import Loss
from surestep.engine.parallel.single import SingleProcessStrategy


class DistributedStrategy(SingleProcessStrategy):
    """The methods of a step whose gradients are summed over ranks; the base class of those."""

    needs_ranks = True

    def count_items(self, batch: Batch, loss: Loss) -> Batch:
        """Add up the items of all ranks, over the host's group."""
        items, *part_items = self.world.exchange([batch.items, *batch.part_items])
        return batch._replace(items=items, part_items=tuple(part_items))

    def reduce_loss(self, loss_sum: Tensor) -> Tensor:
        """Add up the loss of all ranks, on the device; one that is not finite is so for all."""
        total = loss_sum.double()
        dist.all_reduce(total)
        return total.to(loss_sum.dtype)
