"""What the strategies of several processes share: each rank has a share of the global batch."""

import torch.distributed as dist
from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.losses.base import Loss
from surestep.engine.parallel.base import Strategy
from surestep.engine.step_outcome import Gradients


class DistributedStrategy(Strategy):
    """The methods of a step whose gradients are summed over ranks; the base class of those."""

    needs_ranks = True
    shares_step = True

    def count_items(self, batch: Batch, loss: Loss) -> Batch:
        """Sum the items of all ranks, over the host's process group."""
        items, *part_items = self.world.exchange([batch.items, *batch.part_items])
        return batch._replace(items=items, part_items=tuple(part_items))

    def finish_backward(self, gradients: Gradients) -> Gradients:
        """Sum the loss of all ranks."""
        return gradients._replace(loss_sum=self.reduce_loss(gradients.loss_sum))

    def reduce_loss(self, loss_sum: Tensor) -> Tensor:
        """Sum the loss of all ranks, on the device; if one is not finite, the sum is not."""
        total = loss_sum.double()
        dist.all_reduce(total)
        return total.to(loss_sum.dtype)
