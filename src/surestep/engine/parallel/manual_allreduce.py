"""A copy of the model in each process, for manual steps.

DDP relies on one forward of the full model and one backward. Here, the gradients of an optimizer
are summed when it is stepped: in one message for each dtype.
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
        counts = [
            sum(len(group["params"]) for group in state.optimizers[name].param_groups)
            for name in names
        ]
        self._own = names.index(name)
        self._first = len(names) + sum(counts[: self._own])
        self._flags = len(names) + sum(counts)

    @torch.no_grad()
    def reduce_grads(self) -> None:
        """Sum the gradients of all ranks; a parameter without one on any rank stays without.

        Raises:
            ParallelError: the ranks do not step the same optimizer.
        """
        for parameter, there in zip(self.parameters, self._has_grad_anywhere(), strict=True):
            if there and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        having = [parameter for parameter in self.parameters if parameter.grad is not None]
        # After create_graph they are nodes of a graph, which must not be changed in place.
        grads = [
            parameter.grad.detach().clone() for parameter in having if parameter.grad is not None
        ]
        coalesced(grads, dist.all_reduce)
        for parameter, grad in zip(having, grads, strict=True):
            parameter.grad = grad

    def _has_grad_anywhere(self) -> list[bool]:
        """Return for each parameter whether some rank has a gradient of it."""
        flags = [0.0] * self._flags
        flags[self._own] = 1.0
        end = self._first + len(self.parameters)
        flags[self._first : end] = [
            float(parameter.grad is not None) for parameter in self.parameters
        ]
        sums = self.world.all_reduce_sum(flags)
        if sums[self._own] != self.world.size:
            raise ParallelError(
                f"manual_step.step({self.name!r}) is called on {sums[self._own]:g} of "
                f"{self.world.size} ranks, and the others step a different optimizer. Decide by "
                "manual_step.index, or by what "
                "is the same on all ranks."
            )
        return [there > 0 for there in sums[self._first : end]]


@torch.no_grad()
def broadcast_module(model: nn.Module, *, weights: bool) -> None:
    """Give all ranks the buffers of rank 0, as DDP does, and with `weights` its parameters."""
    held = [buffer.detach() for buffer in model.buffers()]
    held += [parameter.detach() for parameter in model.parameters()] if weights else []
    coalesced(held, lambda flat: dist.broadcast(flat, 0))


def coalesced(tensors: Sequence[Tensor], send: Callable[[Tensor], object]) -> None:
    """Send tensors in one message for each dtype, and write back the results."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in kinds.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        send(flat)
        parts = flat.split([tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
