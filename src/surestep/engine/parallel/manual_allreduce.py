"""A copy of the model in each process, for manual steps.

A manual step calls parts of the model, runs several backward passes and uses gradients of
gradients. DDP relies on one forward of the full model and one backward, so here the gradients of an
optimizer are summed when it is stepped: in one message for each dtype.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from surestep.base.errors import ParallelError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.parallel.distributed import DistributedStrategy
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State


class ManualAllReduceStrategy(DistributedStrategy):
    """The methods of one optimizer of a manual step, on a copy of the model in each process."""

    def __init__(self, plan: Plan, state: State, world: Communicator, name: str) -> None:
        super().__init__(plan, state, world, name)
        self.name = name
        names = list(state.optimizers)
        counts = {each: _count(state.optimizers[each]) for each in names}
        self._own = names.index(name)
        self._first = len(names) + sum(counts[each] for each in names[: self._own])
        self._flags = len(names) + sum(counts.values())

    @torch.no_grad()
    def reduce_grads(self) -> None:
        """Sum the gradients of all ranks; a parameter without one on any rank stays without.

        Raises:
            ParallelError: the ranks do not step the same optimizer.
        """
        for parameter, there in zip(self.parameters, self._has_grad_anywhere(), strict=True):
            if there and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        having = [each for each in self.parameters if each.grad is not None]
        # After create_graph they are nodes of a graph, which must not be changed in place.
        grads = [each.grad.detach().clone() for each in having if each.grad is not None]
        coalesced(grads, dist.all_reduce)
        for parameter, grad in zip(having, grads, strict=True):
            parameter.grad = grad

    def _has_grad_anywhere(self) -> list[bool]:
        """Return for each parameter whether some rank has a gradient of it."""
        flags = [0.0] * self._flags
        flags[self._own] = 1.0
        end = self._first + len(self.parameters)
        flags[self._first : end] = [float(each.grad is not None) for each in self.parameters]
        sums = self.world.all_reduce_sum(flags)
        if sums[self._own] != self.world.size:
            raise ParallelError(
                f"manual_step.step({self.name!r}) is called on {sums[self._own]:g} of "
                f"{self.world.size} ranks, and the others step a different optimizer. Decide by "
                "manual_step.index, or by what "
                "is the same on all ranks."
            )
        return [there > 0 for there in sums[self._first : end]]


def _count(optimizer: torch.optim.Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


@torch.no_grad()
def broadcast_module(model: nn.Module, *, weights: bool) -> None:
    """Give all ranks the buffers of rank 0, as DDP does, and with `weights` its parameters."""
    held = [each.detach() for each in model.buffers()]
    held += [each.detach() for each in model.parameters()] if weights else []
    coalesced(held, lambda flat: dist.broadcast(flat, 0))


def coalesced(tensors: Sequence[Tensor], send: Callable[[Tensor], object]) -> None:
    """Send tensors in one message for each dtype, and write back the results."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for each in tensors:
        kinds.setdefault((each.dtype, each.device), []).append(each)
    for alike in kinds.values():
        flat = torch.cat([each.reshape(-1) for each in alike])
        send(flat)
        parts = flat.split([each.numel() for each in alike])
        for each, part in zip(alike, parts, strict=True):
            each.copy_(part.view(each.shape))
