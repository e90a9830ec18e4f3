"""Many processes with a copy of the model each, whose gradients torch averages: DDP.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from surestep.base.errors import TaskError
from surestep.engine.batch import Batch
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.losses.base import Loss
from surestep.engine.parallel.ddp_piggyback import PiggybackModule, PiggybackScalars
from surestep.engine.parallel.distributed import DistributedStrategy
from surestep.engine.parallel.single import NO_GRADIENT, NOTHING, Named, run_backward
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State

_NOT_STATIC = (
    "torch added up no gradients in this step: some parameter of the first step is not used any "
    "more, and parallel.static_graph=True promises that each step uses the same. Leave it out; "
    "where parameters are used in some steps only, say parallel.find_unused_parameters=True."
)


class DDPStrategy(DistributedStrategy):
    """The verbs of a step on a copy of the model in each process."""

    def __init__(self, plan: Plan, state: State, world: Communicator, name: str = WHOLE) -> None:
        super().__init__(plan, state, world, name)
        self._cargo: PiggybackScalars | None = None
        model = state.model
        # What is not reached from the outputs counts as unused there, and the cargo is not.
        if world.size > 1 and not plan.parallel_find_unused_parameters:
            # Of a graph that is not static torch adds up nothing, which a count of ranks tells.
            self._present = [world.rank + 1.0] if plan.parallel_static_graph else []
            model = PiggybackModule(model, 2 + len(self._present))
            self._cargo = PiggybackScalars(model.cargo, world.size)
            self.cleared = [*self.parameters, model.cargo]
        self.module = self.wrap_model(model, plan)
        self._learns_graph = plan.parallel_static_graph
        # To read what arrived would wait for a GPU; a scale fits to the size of a mean loss; and a
        # search goes backward several times.
        reads = plan.device.type == "cpu" and plan.guard not in ("scaled", "searching")
        self._sends_items = reads and self._cargo is not None

    def wrap_model(self, model: nn.Module, plan: Plan) -> nn.Module:
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
        return NOTHING if when else self.no_sync()

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return the context of a backward whose gradients stay on their rank."""
        module: Any = self.module
        context: AbstractContextManager[Any] = module.no_sync()
        return context

    def count_items(self, batch: Batch, loss: Loss) -> Batch:
        """Return the batch with the items of all ranks, or send those of this one with gradients.

        Gradients are then divided by the samples of the global batch, which all ranks know, until
        `settle_items` has the items: for one item a sample that is the same number.
        """
        if self._cargo is None:
            return super().count_items(batch, loss)
        self._cargo.clear()
        samples = batch.end - batch.position
        divides_later = self._sends_items and loss.divides and not loss.components
        if not (divides_later and samples and batch.micro_batches):
            return super().count_items(batch, loss)
        self.world.n_collectives += 1
        self._cargo.send(batch.items, *self.world.summarize(), *self._present)
        return batch._replace(items=float(samples))

    def settle_items(self, items: float, logged: list[Named]) -> tuple[float, list[Named]]:
        """Return the items of all ranks, where they came with the gradients, and divide by them.

        Raises:
            TaskError: nothing was added up, since the graph was not static.
        """
        received = None if self._cargo is None else self._cargo.receive()
        if received is None:
            return items, logged
        of_all, requests, seconds, *present = received
        expected = self.world.size * (self.world.size + 1) / 2
        if present and not math.isclose(present[0], expected, rel_tol=1e-3):
            raise TaskError(_NOT_STATIC)
        self.world.agree_by(requests, seconds)
        return of_all, self._divide_again(logged, items, of_all)

    def _divide_again(self, logged: list[Named], items: float, of_all: float) -> list[Named]:
        """Divide gradients and what is logged by the items of all ranks in place of `items`."""
        if of_all in (0, items):
            return logged
        grads = [each.grad for each in self.parameters if each.grad is not None]
        torch._foreach_mul_(grads, items / of_all)
        return [(name, value * (items / of_all)) for name, value in logged]

    def reduce_loss(self, loss_sum: Tensor) -> Tensor:
        """Return the loss of all ranks, as it came with the gradients."""
        if self._cargo is None:
            return super().reduce_loss(loss_sum)
        return self._cargo.loss_sum().to(loss_sum.dtype)

    def backward(self, loss_sum: Tensor, items: float) -> None:
        """Go backward from ranks / items, since torch divides by the ranks; the cargo goes too."""
        if self._cargo is None:
            super().backward(loss_sum, items / self.world.size)
            return
        if not loss_sum.requires_grad:
            raise TaskError(NO_GRADIENT)
        seed = self.scaler.scale(torch.full_like(loss_sum, self.world.size / items))
        root, values = self._cargo.root(loss_sum)
        run = run_backward if type(loss_sum) is Tensor else torch.autograd.backward
        run((loss_sum, root), (seed, values))
